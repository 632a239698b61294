"""A Checkpoint says where a training stands, in a file that is whole whenever its writer is killed."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch


@dataclasses.dataclass
class Sums:
    """Adds up an epoch's images: how many, how many right, and their losses."""

    images: int = 0
    correct: int = 0
    loss: float = 0.0

    def add(self, images: int, correct: int, loss: float) -> None:
        """Adds a batch of mean loss `loss`."""
        self.images += images
        self.correct += correct
        self.loss += loss * images

    @property
    def mean_loss(self) -> float:
        return self.loss / self.images

    @property
    def accuracy(self) -> float:
        return self.correct / self.images


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Is taken after `step` steps of `epoch`; `sums` are those of these steps, `loader` is a state_dict() or None."""

    epoch: int
    step: int
    sums: Sums
    training: dict[str, Any]
    loader: dict[str, Any] | None

    def write(self, path: str) -> None:
        torch.save(dataclasses.asdict(self), path + ".new")
        os.replace(path + ".new", path)


def read_checkpoint(path: str) -> Checkpoint:
    """Returns the checkpoint of a file. Raises OSError."""
    fields = torch.load(path, weights_only=True)
    return Checkpoint(**{**fields, "sums": Sums(**fields["sums"])})
