"""Samples a second over whole epochs: prefetchd, DataLoader, and bare loops, in turn."""

from __future__ import annotations

import itertools
from typing import Any

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from benchmarks.bare_loops import samples_a_second
from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch

WORKERS = 2
RING_BATCHES = 8


def compare(title: str, dataset: Dataset[Any], batch_size: int, batches: int, rounds: int) -> None:
    """Takes `batches` batches a round; the ring holds so few that what was ready at the start does not count."""
    samples = batches * batch_size
    common: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "drop_last": True, "num_workers": WORKERS}
    with own_daemon(workers=WORKERS), PrefetchLoader(dataset, buffer=RING_BATCHES, **common) as ours:
        theirs = DataLoader(dataset, persistent_workers=True, **common)

        def loader_rate(loader: DataLoader[Any]) -> float:
            # The workers of the one that is not measured stand still: its buffer is full.
            batches_of_it = endless(loader)
            for _ in itertools.islice(batches_of_it, RING_BATCHES + 1):
                pass
            elapsed = stopwatch()
            for batch in itertools.islice(batches_of_it, batches):
                del batch
            return samples / elapsed()

        contestants = {
            "prefetchd": lambda: loader_rate(ours),
            "DataLoader": lambda: loader_rate(theirs),
            "two bare loops": lambda: samples_a_second(dataset, batch_size, WORKERS, samples),
        }
        figures = interleave(rounds, contestants)
    report(title, "samples/s", figures, "prefetchd", {"two bare loops": 0.95, "DataLoader": 1.0})
