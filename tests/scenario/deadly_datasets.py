"""Datasets with samples that raise or end their process; importable by workers."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate


class Partly(Dataset):
    """Sample i is drawn from all generators. Those in `raising` raise, those in `deadly` end their process."""

    def __init__(self, length: int = 48, raising: tuple[int, ...] = (), deadly: tuple[int, ...] = ()) -> None:
        self.length = length
        self.raising = raising
        self.deadly = deadly

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        if index in self.raising:
            raise ValueError(f"no sample {index}")
        return index, torch.rand(3), np.random.rand(), random.random()

    def harmless(self) -> Partly:
        """The same for a process that has to live: what was deadly raises."""
        return type(self)(self.length, (*self.raising, *self.deadly))


class Gathering(Partly):
    """Makes all samples of a batch in one call, which raises or ends its process if one of them does."""

    def __getitems__(self, indices: list[int]):
        return [self[index] for index in indices]


class Slow(Dataset):
    """Sample i takes a while."""

    def __init__(self, length: int, sample_s: float) -> None:
        self.length = length
        self.sample_s = sample_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        time.sleep(self.sample_s)
        return index, torch.rand(3), np.random.rand(), random.random()


class Greedy(Dataset):
    """Each sample needs `sample_bytes` of memory for a moment."""

    def __init__(self, length: int, sample_bytes: int) -> None:
        self.length = length
        self.sample_bytes = sample_bytes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        block = np.ones(self.sample_bytes, np.uint8)
        time.sleep(0.05)
        return index + int(block[0]) - 1


def as_a_list(samples):
    """What is no default_collate makes batches that are filled whole."""
    return default_collate(samples), len(samples), torch.rand(2)


def deadly_collate(samples):
    if any(sample[0] == 5 for sample in samples):
        os.kill(os.getpid(), signal.SIGABRT)
    return default_collate(samples)


class LeavesAWriter(Dataset):
    """Who makes sample 6 first forks a child, which has all that its worker may write to and is told in the file
    `told`, and never makes it."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 6 and self._is_first():
            pid = os.fork()
            if pid:
                self._told.with_suffix(".new").write_text(str(pid))
                self._told.with_suffix(".new").rename(self._told)
            while True:
                signal.pause()
        return torch.tensor(index)

    def _is_first(self) -> bool:
        # The next epoch's may be made at the same time.
        try:
            self._told.with_suffix(".first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
