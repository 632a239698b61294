"""Samplers that tests share; importable by planners."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

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
