"""The trainer of benchmarks.two_deaths: iterates without end, and says when a batch has come."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler

STEP_S = 0.05
LENGTH = 2000


class Samples(Dataset[torch.Tensor]):
    """Sample i is a row of i, and takes 2 ms."""

    def __init__(self, held: object = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((256,), float(index))


class Flow(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        samples = Samples()
        return (samples[index] for index in range(LENGTH))


def arguments_of(kind: str) -> dict[str, Any]:
    if kind == "sampler":
        sampler = RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(1))
        return {"dataset": Samples(), "sampler": sampler}
    if kind == "iterable":
        return {"dataset": Flow()}
    return {"dataset": Samples(lambda: 0) if kind == "unpicklable" else Samples(), "seed": 0}


def main(kind: str = "plain") -> None:
    with PrefetchLoader(**arguments_of(kind), batch_size=16, num_workers=2, buffer=4, stream="deaths") as loader:
        while True:
            for batch in loader:
                assert (batch[:, 0] == batch[:, -1]).all()
                sys.stdout.write("batch\n")
                sys.stdout.flush()
                time.sleep(STEP_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
