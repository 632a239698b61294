"""SeededOrder is a sampler that is resumed without going through what was consumed, with DataLoader too."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class SeededOrder(Sampler[int]):
    """Shuffles `length` samples by the epoch's number, as DistributedSampler does for one rank."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.epoch = 0
        self._skipped = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def skip_once(self, samples: int) -> None:
        """Leaves out so many samples at the beginning of the next epoch."""
        self._skipped = samples

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self._length, generator=generator).tolist()
        skipped, self._skipped = self._skipped, 0
        return iter(order[skipped:])
