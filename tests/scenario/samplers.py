"""Samplers that tests share; importable by planners."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler


class Remembering(Sampler[int]):
    """Another order in each pass, by what it keeps itself."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.passes = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([(index * (2 * self.passes + 1)) % self.length for index in range(self.length)])


class Telling(Remembering):
    """Writes the process that runs it into a file."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __iter__(self) -> Any:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return super().__iter__()


class Failing(Sampler[int]):
    """Raises after `good` keys."""

    def __init__(self, good: int) -> None:
        self.good = good

    def __iter__(self) -> Any:
        yield from range(self.good)
        raise LookupError("no more keys")


class Endless(Sampler[int]):
    def __iter__(self) -> Any:
        index = 0
        while True:
            yield index % 50
            index += 1


class Stuck(Sampler[int]):
    """Never gives its second batch."""

    def __iter__(self) -> Any:
        yield from range(4)
        time.sleep(3600)


class Deadly(Sampler[int]):
    """Ends its process."""

    def __iter__(self) -> Any:
        os._exit(3)


class Buckets(Sampler[list[int]]):
    """Batches of different sizes, in another order in each epoch that it is told of."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Any:
        first = 0
        for size in self.sizes[self.epoch % len(self.sizes) :] + self.sizes[: self.epoch % len(self.sizes)]:
            yield list(range(first, first + size))
            first += size


class WithEpoch(Sampler[int]):
    """May be told its epoch."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class SelfCounting(WithEpoch):
    """Another order in each epoch, which it counts itself: as a pass begins, or as it ends, as accelerate's
    SeedableRandomSampler does."""

    def __init__(self, length: int, *, at_end: bool) -> None:
        super().__init__(length)
        self.at_end = at_end

    def __iter__(self) -> Any:
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(100 + self.epoch)).tolist()
        if not self.at_end:
            self.epoch += 1
        yield from order
        if self.at_end:
            self.set_epoch(self.epoch + 1)


class Private(WithEpoch):
    """Has a generator that nobody else can see, and an epoch that it does not use."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.dice = random.Random(3)

    def __iter__(self) -> Any:
        order = list(range(self.length))
        self.dice.shuffle(order)
        return iter(order)
