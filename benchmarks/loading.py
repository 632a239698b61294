"""compare measures samples a second over whole epochs: prefetchd, DataLoader, and bare loops, in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from benchmarks.bare_loops import samples_a_second
from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch

WORKERS = 2
RING_BATCHES = 8


def compare(
    title: str,
    dataset: Any,
    batch_size: int,
    batches: int,
    rounds: int,
    to_reach: dict[str, float | None],
    collate_fn: Callable[[Any], Any] | None = None,
) -> None:
    """Takes `batches` batches a round; the ring holds so few that what was ready at the start does not count. Runs
    whom `to_reach` names beside ours: "DataLoader", "two bare loops"."""
    samples = batches * batch_size
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": True,
        "drop_last": True,
        "num_workers": WORKERS,
        "collate_fn": collate_fn,
    }
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
        taking_part = {name: run for name, run in contestants.items() if name == "prefetchd" or name in to_reach}
        figures = interleave(rounds, taking_part)
    report(title, "samples/s", figures, "prefetchd", to_reach)
