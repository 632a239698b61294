"""torchdata.nodes: a sampler's batches of indices, mapped in parallel, as its migration guide writes DataLoader anew.

https://meta-pytorch.org/data/main/migrate_to_nodes_from_utils.html: batches of indices by SamplerWrapper and Batcher,
one map function that loads and collates, ParallelMapper, Prefetcher, Loader. In threads, its default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import RandomSampler, SequentialSampler, default_collate
from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper

from benchmarks.peers.datasets import dataset_of
from benchmarks.peers.feeds import WORKERS, Data, Feed
from benchmarks.peers.job import Job


class MapAndCollate:
    """Makes a batch of a list of indices."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, indices: list[int]) -> Any:
        return default_collate([self.dataset[index] for index in indices])


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    dataset = dataset_of(feed.name, data)
    sampler = SequentialSampler(dataset) if feed.name == "jpeg-validation" else RandomSampler(dataset)
    node: Any = Batcher(SamplerWrapper(sampler), feed.batch_size, drop_last=True)
    node = ParallelMapper(node, MapAndCollate(dataset), num_workers=WORKERS, method="thread")
    return Loader(Prefetcher(node, prefetch_factor=WORKERS))
