"""The blocks that no test of this directory runs, each with the reason. test_every_block.py still looks at each."""

from __future__ import annotations

from tests.documents.pages import Block

GPU = "it takes a GPU: it is run where there is one"
INDEX = "it installs from a package index"
MINUTES = "it takes minutes, and a package index"
MEMORY = "it takes 40 GB of shared memory, and a RAM disk"
OWN_PATH = "the path in it is the reader's own"
RIGHTS = "it takes rights: test_pages_of_root.py runs it where they are given"
ROOT = "it writes below /etc, and makes a user's unit"
ENDLESS = "it follows a log without end, on a machine with a journal"
CLUSTER = "it takes a Ray cluster of several machines"
SERVES = "it serves until it is interrupted: tests/dashboard runs it"
MACHINE = "what the doctor finds depends on the machine"
TRAINERS = "it is run by tests/trainers/test_docs.py, where the trainers' packages are imported once"

NOT_RUN = {
    ("README.md", "make demo"): MINUTES,
    ("README.md", "pip install ."): INDEX,
    ("CONTRIBUTING.md", "make check"): MINUTES,
    ("CONTRIBUTING.md", ".venv/bin/python -m pip install 'coverage>=7.10'"): INDEX,
    ("systemd/README.md", "prefetchd systemd install"): RIGHTS,
    ("systemd/README.md", "prefetchd systemd uninstall"): RIGHTS,
    ("systemd/README.md", "[Service]"): OWN_PATH,
    ("systemd/README.md", "sudo prefetchd systemd install --system ada"): ROOT,
    ("systemd/README.md", "systemctl --user status prefetchd"): ENDLESS,
    ("docs/batch-files.md", "sudo mount -t tmpfs -o size=31G,mode=0700,uid=$(id -u) tmpfs ram"): RIGHTS,
    ("docs/cluster.md", "export RAY_AUTH_MODE=token"): CLUSTER,
    ("docs/cluster.md", "sh examples/cluster/make_certificates.sh 10.0.0.1 10.0.0.2"): CLUSTER,
    ("docs/cluster.md", "ray start --address=10.0.0.1:6379 --num-cpus=16"): CLUSTER,
    ("docs/cluster.md", "prefetchd run --detach --ray=10.0.0.1:6379"): CLUSTER,
    ("docs/configuration.md", "[streams.validation]"): MEMORY,
    ("docs/compatibility.md", "pip install expecttest"): INDEX,
    ("docs/dashboard.md", "prefetchd dashboard"): SERVES,
    ("docs/device.md", 'loader = PrefetchLoader(dataset, batch_size=256, shuffle=True, device="cuda")'): GPU,
    ("docs/device.md", "graph = torch.cuda.CUDAGraph()"): GPU,
    ("docs/device.md", "from prefetchd_client.device.images import CropFlipNormalize"): GPU,
    ("docs/images.md", "import webdataset"): OWN_PATH,
    ("docs/images.md", "from prefetchd_client.images import DecodeOnDevice, collate_encoded, encoded_picture"): GPU,
    ("docs/peers.md", "python -m benchmarks.peers setup"): MINUTES,
    ("docs/trainers.md", "import lightning"): TRAINERS,
    ("docs/trainers.md", "from accelerate import Accelerator"): TRAINERS,
    ("docs/trainers.md", "from transformers import Trainer, TrainingArguments"): TRAINERS,
    ("website/start/install.md", "pip install '.[dashboard]'"): INDEX,
    ("website/start/install.md", "prefetchd doctor"): MACHINE,
    ("website/start/is-it-the-data.md", "prefetchd dashboard"): SERVES,
    ("website/start/when-something-is-wrong.md", "prefetchd doctor"): MACHINE,
}
"""By page and one of the block's lines: where that line is changed, somebody looks at the reason anew."""


def reason_for(block: Block) -> str | None:
    """Why the block is not run; None for one that is."""
    return next((why for (page, line), why in NOT_RUN.items() if page == block.page and line in block.lines), None)
