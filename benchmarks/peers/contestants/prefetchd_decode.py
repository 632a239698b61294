"""prefetchd with prefetchd_client.images.Decode: the same, but that each JPEG is decoded by its crop.

As docs/images.md says: two arguments of the ImageFolder are others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefetchd_client import PrefetchLoader
from prefetchd_client.images import Decode
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from benchmarks.peers.contestants.dataloader import arguments
from benchmarks.peers.contestants.prefetchd import options
from benchmarks.peers.datasets import picture_transform
from benchmarks.peers.feeds import VALIDATED, Data, Feed
from benchmarks.peers.job import Job


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    pictures: Any = ImageFolder(str(data.pictures), Decode(picture_transform(feed.name)), loader=str)
    if feed.name == "jpeg-validation":
        pictures = Subset(pictures, VALIDATED)
    return PrefetchLoader(pictures, **arguments(feed), **options(feed, job))
