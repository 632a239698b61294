"""Iterable datasets that tests share; importable by workers."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Draws(IterableDataset):
    """Draws from each global generator, shard by shard; the first shards have more samples. A file for each shard
    tells which samples were made by whom."""

    def __init__(self, length: int = 90, notes: Path | None = None) -> None:
        self.length = length
        self.notes = notes

    def __iter__(self):
        info = get_worker_info()
        begin = torch.rand(())
        for index in range(info.id, self.length - 10 * info.id, info.num_workers):
            if self.notes is not None:
                with (self.notes / str(info.id)).open("a") as file:
                    file.write(f"{index} {os.getpid()}\n")
            yield index, begin, torch.rand(2), np.random.rand(), random.random()


class Shuffling(IterableDataset):
    """Shuffles its own array in place, large enough to be handed over out of band."""

    def __init__(self) -> None:
        self.order = np.arange(20_000)

    def __iter__(self):
        np.random.shuffle(self.order)
        yield from self.order[:12].tolist()


class Halting(IterableDataset):
    """Its fifth sample takes until `go` exists."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def __iter__(self):
        for index in range(8):
            while index == 4 and not self.go.exists():
                time.sleep(0.01)
            yield index


class Scaled(IterableDataset):
    def __init__(self, scale: int) -> None:
        self.scale = scale

    def __iter__(self):
        return iter(range(0, 6 * self.scale, self.scale))


class Meeting(IterableDataset):
    """Its `workers` meet at a barrier before each has its first sample, and may not go on alone."""

    def __init__(self, workers: int, length: int = 48) -> None:
        # A barrier that forks inherit.
        self.barrier = multiprocessing.get_context("fork").Barrier(workers)
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        self.barrier.wait()
        for index in range(info.id, self.length, info.num_workers):
            yield index, torch.rand(())


class Deadly(IterableDataset):
    """Sample 7 ends whoever makes it."""

    def __iter__(self):
        for index in range(12):
            if index == 7:
                os._exit(3)
            yield index


class Counting(IterableDataset):
    """Says where it stands, and goes on there; `notes` tells which samples were made. `ballast` makes its state
    longer."""

    def __init__(self, notes: Path, length: int = 60, ballast: int = 0) -> None:
        self.notes = notes
        self.length = length
        self.ballast = ballast
        self.at = 0

    def __iter__(self):
        info = get_worker_info()
        for number in range(self.at, self.length):
            self.at = number + 1
            index = info.id + info.num_workers * number
            with self.notes.open("a") as file:
                file.write(f"{index}\n")
            yield index, torch.rand(())
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "ballast": bytes(self.ballast)}

    def load_state_dict(self, state) -> None:
        self.at = state["at"]


class Steps(IterableDataset):
    """It is its iterator that says where it stands."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __iter__(self):
        return StepsIterator(self.notes)


class StepsIterator:
    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.at = -1

    def __iter__(self):
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= 60:
            raise StopIteration
        with self.notes.open("a") as file:
            file.write(f"{self.at}\n")
        return self.at

    def state_dict(self):
        return self.at

    def load_state_dict(self, state) -> None:
        self.at = state


class Broken(Steps):
    def load_state_dict(self, state) -> None:
        raise RuntimeError("no such state")

    def state_dict(self):
        return 1


class Overlapping(IterableDataset):
    """All shards make the same samples, as when get_worker_info() is forgotten."""

    def __len__(self) -> int:
        return 8

    def __iter__(self):
        return iter(range(8))
