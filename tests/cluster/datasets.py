"""Datasets that cost so much that other machines are worth their while, and that see where they are."""

from __future__ import annotations

import os
import time

import torch
from torch.utils.data import Dataset

SAMPLE_S = 0.01


def is_elsewhere() -> bool:
    """True in a worker of an actor: Ray's variables are the node's. A variable that is named here would count in the
    fingerprint, and no node would be like this machine."""
    return any(name.startswith("RAY_JOB_") for name in os.environ)


class Slow(Dataset):
    """Samples take `sample_s`, and are random as their seed says."""

    def __init__(self, length: int = 800, odd: str = "", sample_s: float = SAMPLE_S) -> None:
        """`odd` is what happens on other machines alone: "raises", "differs", "prints", "dies", "hangs", or "is
        missing"."""
        self.length = length
        self.odd = odd
        self.sample_s = sample_s

    def __len__(self) -> int:
        return self.length

    def __setstate__(self, state: dict) -> None:
        if state["odd"] == "is missing" and is_elsewhere():
            raise ModuleNotFoundError("No module named 'theirs'")
        self.__dict__.update(state)

    def __getitem__(self, index: int):
        if self.sample_s:
            time.sleep(self.sample_s)
        noise = 0.0
        if self.odd and is_elsewhere():
            if self.odd == "raises":
                raise FileNotFoundError(f"/data/{index}.jpg")
            if self.odd == "prints":
                print(f"sample {index} is loaded")
            while self.odd == "hangs" and index % 50 == 0:
                time.sleep(60)
            if self.odd == "dies" and index % 50 == 0:
                os.abort()
            if self.odd == "differs":
                noise = 1.0
        return torch.rand(8, 8) + index + noise, index


class Files(Dataset):
    """Each sample is a file's first bytes, with random numbers as its seed says."""

    def __init__(self, directory: str, length: int, sample_s: float = SAMPLE_S) -> None:
        self.directory = directory
        self.length = length
        self.sample_s = sample_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if self.sample_s:
            time.sleep(self.sample_s)
        with open(f"{self.directory}/{index}.bin", "rb") as file:
            return torch.rand(8, 8) + int.from_bytes(file.read(4), "little"), index


def as_pairs(samples):
    """A collate_fn of the user's own: batches are made whole."""
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.tensor([y for _, y in samples])}
