"""Datasets for sample caches: each sample that is made is told in a file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from prefetchd_client import SampleCache
from torch.utils.data import Dataset

LENGTH = 60


class Item(NamedTuple):
    image: torch.Tensor
    points: np.ndarray
    label: int


class Prepared(Dataset):
    """Samples of 3 x side x side bytes, and what belongs to each; the file `calls` has a line for each that was made.
    Part of it is drawn at random."""

    def __init__(self, calls: str | os.PathLike[str], side: int = 24, length: int = LENGTH, variant: int = 0) -> None:
        self.calls, self.side, self.length, self.variant = Path(calls), side, length, variant

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Item:
        fd = os.open(self.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{index}\n".encode())
        os.close(fd)
        image = torch.full((3, self.side, self.side), (index + self.variant) % 251, dtype=torch.uint8)
        image[0, 0, 0] = random.randrange(256)
        return Item(image, np.array([index, np.random.rand()], np.float32), index)

    def made(self) -> list[int]:
        return [int(line) for line in self.calls.read_text().split()] if self.calls.exists() else []


class Plain(Dataset):
    """(image, label), the usual sample: nothing random in it."""

    def __init__(self, calls: str | os.PathLike[str], length: int = LENGTH) -> None:
        self.calls, self.length = Path(calls), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        fd = os.open(self.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{index}\n".encode())
        os.close(fd)
        return torch.arange(3 * 64 * 64, dtype=torch.int32).view(3, 64, 64) + index, index

    def made(self) -> list[int]:
        return [int(line) for line in self.calls.read_text().split()] if self.calls.exists() else []


class Signed(Plain):
    """Slow, and each sample tells in the file `pids` beside `calls` who made it."""

    @property
    def makers(self) -> Path:
        return self.calls.with_name("pids")

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.003)
        with open(self.makers, "a") as file:
            file.write(f"{os.getpid()}\n")
        return super().__getitem__(index)


class Watched(SampleCache):
    """Tells in the file `copies` beside it who copied which rows; each takes a millisecond, so that a batch is cut."""

    @property
    def copies(self) -> Path:
        return self.path.with_name("copies")

    def gather_into(self, indices: Sequence[int], targets: Sequence[torch.Tensor]) -> Sequence[int]:
        time.sleep(0.001 * len(indices))
        with open(self.copies, "a") as file:
            file.write(f"{os.getpid()} {len(indices)}\n")
        return super().gather_into(indices, targets)


def make_plain(calls: str, length: int = LENGTH) -> Plain:
    return Plain(calls, length)


def make_signed(calls: str, length: int = LENGTH) -> Signed:
    return Signed(calls, length)


def make_cache(calls: str, path: str) -> SampleCache:
    return SampleCache(Plain(calls), path)


def jittered(item: Item) -> tuple[torch.Tensor, float, int]:
    """A transform that draws from each generator."""
    image = item.image.roll(int(torch.randint(0, 8, ())), -1)
    if random.random() < 0.5:
        image = image.flip(-1)
    return image.float() + np.random.rand(), float(item.points[1]), item.label
