"""Datasets that hold gigabytes: handed over beside the pickle, and there once for all workers."""

from __future__ import annotations

import array
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.fingerprint import quick_walk
from prefetchd_client.forking.fork_work import ForkWork
from prefetchd_client.program.program_pickle import pickle_program
from prefetchd_client.session import link
from prefetchd_client.session.link import Link
from torch.utils.data import Dataset

from prefetchd.wire.messages import Deciding, Welcome
from tests.scenario.waiting import stream_when, until

pytestmark = pytest.mark.usefixtures("shared_daemon")

MIB = 1 << 20


class Held(Dataset):
    """Item i is row i of a tensor and of an array, and where the worker has them in its memory."""

    def __init__(self) -> None:
        self.tensor = torch.arange(64 * MIB, dtype=torch.uint8).view(64, MIB)
        self.array = np.arange(8 * MIB).reshape(64, -1)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        found = int(self.tensor[index].sum()), int(self.array[index].sum())
        return found, os.getpid(), [mapping_at(each) for each in (self.tensor.data_ptr(), self.array.ctypes.data)]


def mapping_at(address: int) -> tuple[str, int]:
    """The mapping around `address`: its inode, and how many KiB of it are this process's own copies."""
    inode, own = "", -1
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            low, high = (int(each, 16) for each in first.split("-"))
            inside = low <= address < high
            inode = f"{rest[2]} {rest[3]}" if inside else inode
        elif inside and first == "Anonymous:":
            own = int(rest[0])
    return inode, own


def as_they_are(samples: Any) -> Any:
    return samples


@pytest.mark.usefixtures("executed")
def test_all_workers_look_at_one_copy():
    held = Held()
    expected = [(int(held.tensor[index].sum()), int(held.array[index].sum())) for index in range(64)]
    processes, inodes = set(), set()
    with PrefetchLoader(held, batch_size=4, num_workers=2, collate_fn=as_they_are, buffer=6) as loader:
        while len(processes) < 2:
            samples = [sample for batch in loader for sample in batch]
            assert [found for found, _, _ in samples] == expected
            for _, process, mappings in samples:
                processes.add(process)
                for inode, own_kib in mappings:
                    inodes.add(inode)
                    assert own_kib == 0, "a worker has pages of its own"
    assert len(inodes) == 1, "tensor and array are in the program segment, the same for both workers"
    assert not inodes.pop().endswith(" 0"), "memory without a name: a copy"


class Weighed(Held):
    """Item i is row i's sum, and how many KiB of the tensor are the worker's alone."""

    def __getitem__(self, index: int) -> Any:
        own_kib = private_kib(self.tensor.data_ptr(), self.tensor.nbytes)
        return int(self.tensor[index].sum()), int(self.array[index].sum()), own_kib


def private_kib(address: int, size: int) -> int:
    """Of the pages that lie in this memory alone: what no other process has (pagemap of proc(5), bits 63 and 56)."""
    first, end = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(8 * first)
        entries = array.array("Q", pages.read(8 * (end - first)))
    return sum(entry >> 63 & entry >> 56 & 1 for entry in entries) * mmap.PAGESIZE // 1024


def test_memory_that_a_process_has_alone_is_weighed():
    own = torch.ones(MIB, dtype=torch.uint8)
    assert private_kib(own.data_ptr(), own.nbytes) > MIB // 1024 - 16


def test_forked_workers_look_at_the_trainer_s_copy():
    held = Weighed()
    expected = [(int(held.tensor[index].sum()), int(held.array[index].sum())) for index in range(64)]
    with PrefetchLoader(held, batch_size=4, num_workers=2, collate_fn=as_they_are, buffer=6) as loader:
        samples = [sample for batch in loader for sample in batch]
    assert [found for *found, _ in samples] == [list(each) for each in expected]
    assert max(own for *_, own in samples) < MIB // 1024, sorted(own for *_, own in samples)


HOLDS_MUCH = """
import numpy
from pathlib import Path
from prefetchd_client import PrefetchLoader

class Rows:
    def __init__(self):
        self.array = numpy.ones((256, 1 << 20), numpy.uint8)
    def __len__(self):
        return 256
    def __getitem__(self, index):
        return int(self.array[index].sum())

def most_kib():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

data = Rows()
Path("/proc/self/clear_refs").write_text("5")  # the most from here on
before_kib = most_kib()
assert before_kib > 256 << 10
with PrefetchLoader(data, batch_size=4, num_workers=1) as loader:
    assert next(iter(loader)).tolist() == [1 << 20] * 4
    print(most_kib() - before_kib)
"""


@pytest.mark.executed
def test_the_trainer_has_no_second_copy_of_what_it_hands_over(shared_daemon):
    environment = shared_daemon.environment | {"PREFETCHD_START": "exec"}
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_MUCH], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 10, f"it takes {int(done.stdout) >> 10} MiB more for an array of 256 MiB"


def test_the_pickle_is_small_whatever_the_dataset_holds():
    pickled, buffers = pickle_program({"dataset": Held()})
    assert len(pickled) < 4096
    assert sum(buffer.nbytes for buffer in buffers) == 128 * MIB


def test_a_list_of_very_many_paths_arrives():
    paths = [f"/data/train/{place // 1000:04}/{place:07}.jpg" for place in range(1_000_000)]
    with PrefetchLoader(paths, batch_size=1000, num_workers=2, buffer=6) as loader:
        iterator = iter(loader)
        assert next(iterator) == paths[:1000]
        assert next(iterator) == paths[1000:2000]


def test_a_fingerprint_may_take_longer_than_a_daemon_may_be_silent(shared_daemon, tmp_path, monkeypatch):
    """Found as a constructor that raised "the daemon has not answered for 60 s": it waited for its own fork."""
    numbers = torch.arange(40)
    with PrefetchLoader(numbers, batch_size=4, buffer=6, stream="told late") as loader:
        assert loader.fingerprint
        next(iter(loader))
    stream_when(shared_daemon, "told late", lambda stream: stream["lingering"])
    may_tell, answers, identify, answer = tmp_path / "may tell", [], ForkWork.identify, Link._answer

    def identify_late(work):
        until(may_tell.exists, "the trainer has waited for long enough")
        return identify(work)

    def count(link):
        answers.append(answer(link))
        if len(answers) == 3:
            may_tell.touch()
        return answers[-1]

    monkeypatch.setattr(quick_walk, "WITHIN_S", 0.0)
    monkeypatch.setattr(ForkWork, "identify", identify_late)
    monkeypatch.setattr(Link, "_answer", count)
    # Less than it waits: two seconds for each Deciding after the first.
    monkeypatch.setattr(link, "ANSWER_TIMEOUT_S", 3.5)
    with PrefetchLoader(numbers, batch_size=4, buffer=6, stream="told late") as loader:
        assert [type(each) for each in answers] == [Deciding, Deciding, Deciding, Welcome]
        assert len(list(loader)) == 10
