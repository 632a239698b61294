"""DataLoader: torch's own, two workers that stay, whole samples by __getitem__.

As advised on https://docs.pytorch.org/docs/stable/data.html: persistent_workers for several epochs, prefetch_factor and
the start method as they are by default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers.datasets import dataset_of
from benchmarks.peers.feeds import WORKERS, Data, Feed
from benchmarks.peers.job import Job


def arguments(feed: Feed) -> dict[str, Any]:
    """Returns the arguments of DataLoader, which those that are made like it take too."""
    return {
        "batch_size": feed.batch_size,
        "shuffle": feed.name != "jpeg-validation",
        "drop_last": True,
        "num_workers": WORKERS,
    }


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    return DataLoader(dataset_of(feed.name, data), persistent_workers=True, **arguments(feed))
