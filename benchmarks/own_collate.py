"""How soon is the first batch of slow samples there that a collate_fn of one's own makes?

python -m benchmarks.own_collate [--rounds N] [--workers N ...]

Sixteen samples of 100 ms: one worker cannot have them before 1.6 s. From the loader's making, a daemon runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import interleave, own_daemon, report, stopwatch

BATCH = 16
SAMPLE_S = 0.1
BATCHES = 64


class Slow(Dataset[torch.Tensor]):
    """Gives pictures of floats after a while."""

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SAMPLE_S)
        return torch.full((3, 64, 64), float(index))


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """Makes a batch of all samples, as no library knows it."""
    return torch.stack(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8])
    arguments = parser.parse_args()
    contestants: dict[str, Callable[[], float]] = {}
    for workers in arguments.workers:
        contestants[f"prefetchd, {workers}"] = partial(_ours_s, workers)
        contestants[f"DataLoader, {workers}"] = partial(_first_s, DataLoader, workers)
    figures = interleave(arguments.rounds, contestants)
    for workers in arguments.workers:
        kinds = {name: figures[f"{name}, {workers}"] for name in ("prefetchd", "DataLoader")}
        title = f"the first batch, {workers} {'worker' if workers == 1 else 'workers'}"
        report(title, "s", kinds, "prefetchd", {"DataLoader": None})


def _ours_s(workers: int) -> float:
    # A daemon that knows the dataset from the round before would have the batch.
    with own_daemon():
        return _first_s(PrefetchLoader, workers)


def _first_s(kind: Any, workers: int) -> float:
    elapsed_s = stopwatch()
    loader = kind(Slow(), batch_size=BATCH, collate_fn=collate, num_workers=workers)
    batches = iter(loader)
    first = next(batches)
    taken_s = elapsed_s()
    assert first[:, 0, 0, 0].tolist() == [float(index) for index in range(BATCH)]
    return taken_s


if __name__ == "__main__":
    main()
