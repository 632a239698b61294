"""TensorSocket: a producer that wraps a DataLoader, and consumers in the trainers, which have the same batches.

As its README says, https://github.com/Resource-Aware-Data-systems-RAD/tensorsocket: TensorProducer around the loader in
a process of its own, TensorConsumer in each trainer.

It is made for tensors on a GPU, whose memory it shares. On the CPU each message carries the bytes: all that the
producer has put together, eight batches. producer_batch_size=1, which would send one, ended with an IndexError here;
with 2 no batch came within a minute.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorsocket import TensorConsumer, TensorProducer
from torch.utils.data import DataLoader

from benchmarks.peers.contestants.dataloader import arguments
from benchmarks.peers.datasets import dataset_of
from benchmarks.peers.feeds import FEEDS, Data, Feed
from benchmarks.peers.job import Job


def produce(job: Job) -> None:
    """Serves batches until it is killed."""
    feed = FEEDS["jpeg-bytes"]
    producer = TensorProducer(DataLoader(dataset_of(feed.name, job.data), persistent_workers=True, **arguments(feed)))
    while True:
        for _ in producer:
            pass


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    return TensorConsumer(batch_size=feed.batch_size)
