"""Datasets that tests share; importable by workers."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils.data import Dataset


class Numbers(Dataset):
    """Item i is a tensor of i and i itself."""

    def __init__(self, length: int = 50, width: int = 4) -> None:
        self.length = length
        self.width = width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return torch.full((self.width,), index), index


class Dice(Dataset):
    """Item i draws from each global generator."""

    def __init__(self, length: int = 60) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return index, torch.rand(3), np.random.rand(), random.random(), torch.randint(0, 1 << 40, ())


class SeldomDice(Dice):
    """Most items draw nothing, one in fifty draws from one generator."""

    def __getitem__(self, index: int):
        draws = [
            lambda: torch.rand(()).item(),
            np.random.rand,
            random.random,
            lambda: torch.initial_seed() % 1000 / 1000,
        ]
        return index, draws[index // 50 % len(draws)]() if index % 50 == 49 else 0.0


class Made(Dataset):
    """Item i is make(i)."""

    def __init__(self, make, length: int = 24) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return self.make(index)


def equal(one, other) -> bool:
    """Equal in type and value, all the way down; tensors also in dtype, shape and stride."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.stride() == other.stride()
            and torch.equal(one, other)
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)
