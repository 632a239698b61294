"""StatefulDataLoader of torchdata: DataLoader with a state in the middle of an epoch, and the same arguments.

https://meta-pytorch.org/data/main/torchdata.stateful_dataloader.html
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.contestants.dataloader import arguments
from benchmarks.peers.datasets import dataset_of
from benchmarks.peers.feeds import Data, Feed
from benchmarks.peers.job import Job


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    return StatefulDataLoader(dataset_of(feed.name, data), persistent_workers=True, **arguments(feed))
