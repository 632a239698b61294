"""A ring on a hugetlbfs: the same batches, in one slot and in several, and kept when the daemon is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scenario.small_rooms import in_a_small_room

PAGES = 48
RESERVED = Path("/proc/sys/vm/nr_hugepages")
FREE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")

SCRIPT = """
import json, signal
from torch.utils.data import DataLoader
from tests.scenario import declared_datasets
from tests.scenario.datasets import equal

dataset = declared_datasets.{factory}()
collate_fn = declared_datasets.padded if {varying} else None
disk, config = (os.path.join(os.environ["PLACE"], name) for name in ("disk", "streams.toml"))
os.mkdir(disk)
subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=2M", "hugetlbfs", disk], check=True)
with open(config, "w") as file:
    file.write('[streams.train]\\ndataset = "tests.scenario.declared_datasets:{factory}"\\nbatch_size = 4\\n')
    file.write('collate_fn = "tests.scenario.declared_datasets:padded"\\n' * {varying})
    file.write(f'buffer = 4\\nstore = {{{{ram_disk = "{{disk}}"}}}}\\n')

def start():
    done = prefetchd("run", "--detach", "--config", config)
    assert not done.returncode, done.stderr

def counted():
    return json.loads(prefetchd("status", "--json").stdout)["streams"][0]

start()
with PrefetchLoader.attach("train") as loader:
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    os.kill(json.loads(prefetchd("status", "--json").stdout)["daemon"]["pid"], signal.SIGKILL)
    start()
    taken = [*first, *batches]
print("right:", len(taken), all(map(equal, taken, DataLoader(dataset, 4, collate_fn=collate_fn))))
print("rings:", len(os.listdir(disk)))
print("slot:", counted()["ring"]["slot_bytes"])
"""


@pytest.fixture
def huge_pages():
    """PAGES more than there were. Skips the test where they cannot be had."""
    before = RESERVED.read_text()
    try:
        RESERVED.write_text(str(int(before) + PAGES))
    except OSError:
        pytest.skip("no right to reserve huge pages")
    try:
        if not FREE.exists() or int(FREE.read_text()) < PAGES:
            pytest.skip("there are no huge pages of 2 MiB")
        yield
        assert int(FREE.read_text()) >= PAGES, "huge pages are still in use"
    finally:
        RESERVED.write_text(before)


@pytest.mark.parametrize(("factory", "varying"), [("labelled", False), ("growing", True)])
def test_a_ring_on_huge_pages(huge_pages, daemon, tmp_path, factory, varying):
    environment = {**daemon.environment, "PLACE": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    said = in_a_small_room(SCRIPT.format(factory=factory, varying=varying), environment)
    assert said["right:"] == "6 True"
    assert said["rings:"] == "1"
    assert int(said["slot:"]) % (2 << 20) == 0
