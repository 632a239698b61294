"""Datasets that come to a gate: some samples wait until a file is there."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset


class Gated(Dataset):
    """Draws at random; each sixteenth sample waits until `gate` is there."""

    def __init__(self, gate: Path, length: int = 64) -> None:
        self.gate = gate
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 16 == 15:
            while not self.gate.exists():
                time.sleep(0.01)
        return index + torch.rand(3)


class ForkedOnly(Gated):
    """Only a fork of its trainer has it."""

    def __init__(self, gate: Path) -> None:
        super().__init__(gate)
        self.lock = threading.Lock()
