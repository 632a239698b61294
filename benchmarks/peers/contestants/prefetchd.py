"""prefetchd: PrefetchLoader in the place of DataLoader, two workers; prepared pictures in a sample cache.

As docs/coming-from-dataloader.md and docs/sample-cache.md say. Where throughput is measured its ring is small, so that
what was ready before does not count; else it is as large as it is by default. Two trainers share one stream. Validation
is said to be deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefetchd_client import PrefetchLoader, SampleCache
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.peers.contestants.dataloader import arguments
from benchmarks.peers.datasets import augmented, dataset_of
from benchmarks.peers.feeds import PREPARED_SIDE, Data, Feed
from benchmarks.peers.job import Job

SMALL_RING = 8
THROUGHPUT = ("jpeg_bytes", "jpeg_floats", "prepared", "tokens", "two_trainers")


def _cache(data: Data) -> SampleCache:
    pictures = ImageFolder(
        str(data.pictures), v2.Compose([v2.Resize((PREPARED_SIDE, PREPARED_SIDE)), v2.PILToTensor()])
    )
    return SampleCache(pictures, data.own("prefetchd", "prepared"))


def prepare(data: Data) -> None:
    _cache(data).build()


def _augmented(sample: tuple[Any, int]) -> tuple[Any, int]:
    return augmented(sample[0]), sample[1]


def options(feed: Feed, job: Job) -> dict[str, Any]:
    """Returns the arguments that DataLoader does not have."""
    chosen: dict[str, Any] = {"buffer": SMALL_RING} if job.work in THROUGHPUT else {}
    if feed.name == "jpeg-validation":
        chosen["deterministic"] = True
    if job.role == "trainer":
        chosen["stream"] = "shared"
    return chosen


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    if feed.name == "prepared":
        return PrefetchLoader(_cache(data), transform=_augmented, **arguments(feed), **options(feed, job))
    return PrefetchLoader(dataset_of(feed.name, data), **arguments(feed), **options(feed, job))
