"""Checks that daemon, packages and GPU fit together."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from prefetchd import __version__
from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, UNKNOWN, Finding
from prefetchd.cli.checks.memory import GPU_DEVICE
from prefetchd.cli.patience import Patience
from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import PROTOCOL_VERSION
from prefetchd.wire.runtime_paths import RuntimePaths

TORCH_WITHIN_S = 120.0
# In a process of its own: this one imports no torch. Source: CUDA Runtime API, cudaHostRegister.
PROBE = """
import json, mmap
import torch
found = {"torch": torch.__version__, "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0}
if found["gpus"]:
    try:
        memory = torch.frombuffer(mmap.mmap(-1, 1 << 20), dtype=torch.uint8)
        torch.cuda.init()
        runtime = torch.cuda.cudart()
        found["code"] = int(runtime.cudaHostRegister(memory.data_ptr(), 1 << 20, 0))
        found["pinned"] = memory.is_pinned()
        if found["code"] == 0:
            runtime.cudaHostUnregister(memory.data_ptr())
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


def daemon_version(paths: RuntimePaths) -> Finding:
    """Checks the version of the daemon that runs on this socket."""
    check = "daemon's version"
    why = "trainers and daemon must speak the same protocol"
    try:
        report = read_report(paths)
    except ProtocolError as error:
        return Finding(check, FAILED, str(error), why, "prefetchd stop, with the command of the daemon's own version")
    if report.snapshot is None or report.state == "dead":
        return Finding(check, OK, "no daemon runs on this socket", why)
    daemon = report.snapshot["daemon"]
    if daemon["protocol"] != PROTOCOL_VERSION:
        text = f"the daemon speaks protocol {daemon['protocol']}, this prefetchd {PROTOCOL_VERSION}"
        return Finding(check, FAILED, text, why, "prefetchd stop; the next trainer starts one of its own version")
    if daemon["software"] != __version__:
        text = f"the daemon is {daemon['software']}, this prefetchd {__version__}; they understand each other"
        return Finding(check, ADVICE, text, why, "prefetchd restart, which keeps its rings if it can")
    return Finding(check, OK, f"{__version__}, like this one", why)


def torch_and_gpu() -> Iterator[Finding]:
    """Reports what torch says in this environment, and whether a small segment can be pinned where there is a GPU."""
    why = "loaders hand out its tensors"
    try:
        found = json.loads(_output_of([sys.executable, "-c", PROBE]))
    except ValueError:
        yield Finding("torch", FAILED, "cannot be imported by this interpreter", why, "pip install torch")
        return
    yield Finding("torch", OK, found["torch"], why)
    check, why = "pinning for the GPU", "batches are copied to the GPU fastest from a ring that is registered with it"
    if not found["gpus"]:
        there = Path(GPU_DEVICE).exists()
        state, text = (ADVICE, "there is a GPU, but torch does not see it") if there else (OK, "no GPU here")
        # Without a GPU there is nothing to fix, and the text is empty.
        yield Finding(check, state, text, why, "nvidia-smi; pip install a torch with CUDA" * there)
    elif found.get("error"):
        yield Finding(check, UNKNOWN, found["error"], why)
    elif found["code"] != 0:
        text = f"cudaHostRegister answers {found['code']}"
        yield Finding(check, FAILED, text, why, "see the driver's log (dmesg); WSL and containers may forbid it")
    elif not found["pinned"]:
        text = "a segment can be registered, and torch does not take it for pinned"
        yield Finding(check, ADVICE, text, why, "pip install a torch of the driver's CUDA")
    else:
        yield Finding(check, OK, f"{found['gpus']} GPUs; a segment can be registered", why)


def _output_of(command: list[str]) -> str:
    """Runs the command. Returns what it prints; empty when it takes longer than TORCH_WITHIN_S."""
    began_s = time.monotonic()
    with (
        Patience("asking torch") as patience,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process,
    ):
        while True:
            try:
                return process.communicate(timeout=0.2)[0]
            except subprocess.TimeoutExpired:
                patience.go_on()
            if time.monotonic() - began_s > TORCH_WITHIN_S:
                process.kill()
                return ""
