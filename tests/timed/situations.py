"""Datasets and trainers whose bottleneck is known: what takes their time is told in seconds, and if it computes."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable

import torch
from torch.utils.data import Dataset, default_collate


def compute(seconds: float) -> None:
    """Uses the CPU for so long, however long that takes."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


class Samples(Dataset[torch.Tensor]):
    """Each sample sleeps and computes for so long; each `every`-th one also sleeps for `seldom_s`. With `lock`, the
    path of a file, only one of all workers sleeps at a time."""

    def __init__(
        self, sleeps_s: float = 0.0, computes_s: float = 0.0, seldom_s: float = 0.0, every: int = 0, lock: str = ""
    ) -> None:
        self.sleeps_s = sleeps_s
        self.computes_s = computes_s
        self.seldom_s = seldom_s
        self.every = every
        self.lock = lock

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.lock:
            with open(self.lock, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(self.sleeps_s)
        else:
            time.sleep(self.sleeps_s)
        if self.every and index % self.every == self.every - 1:
            time.sleep(self.seldom_s)
        compute(self.computes_s)
        return torch.full((16,), index)


def samples(**options: float) -> Samples:
    """Returns a dataset for a declared stream."""
    return Samples(**options)  # type: ignore[arg-type]


class SlowCollate:
    """A collate_fn that sleeps for so long."""

    def __init__(self, sleeps_s: float) -> None:
        self.sleeps_s = sleeps_s

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        time.sleep(self.sleeps_s)
        found: torch.Tensor = default_collate(rows)
        return found


class SlowStart:
    """A worker_init_fn that takes so long."""

    def __init__(self, sleeps_s: float) -> None:
        self.sleeps_s = sleeps_s

    def __call__(self, worker: int) -> None:
        time.sleep(self.sleeps_s)


def evenly(step_s: float) -> Callable[[int], float]:
    """Returns what a trainer sleeps after each of its steps."""
    return lambda step: step_s


def in_bursts(step_s: float, pause_s: float, every: int) -> Callable[[int], float]:
    return lambda step: pause_s if step % every == every - 1 else step_s


class DirectReads(Dataset[torch.Tensor]):
    """Each sample is so many bytes of a file, read from the disk each time: past the kernel's cache."""

    def __init__(self, path: str, nbytes: int) -> None:
        self.path = path
        self.nbytes = nbytes
        self.places = os.path.getsize(path) // nbytes
        self.room: mmap.mmap | None = None

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        # Such a read takes memory at a page's beginning. Each worker makes its own, once.
        room = self.room = self.room or mmap.mmap(-1, self.nbytes)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(fd, [room], index % self.places * self.nbytes)
        finally:
            os.close(fd)
        return torch.full((16,), room[0])
