"""Datasets that hold gigabytes: handed over beside the pickle, and there once for all workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.program_pickle import pickle_program
from torch.utils.data import Dataset

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
