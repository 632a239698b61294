"""tensordict: memory-mapped tensors that a DataLoader indexes a whole batch at a time.

As on https://docs.pytorch.org/tensordict/main/data_loading.html and in its tutorial
https://docs.pytorch.org/tensordict/stable/tutorials/tensorclass_imagenet.html: what is not random is done before, a
batch is read by one index operation, random transforms are done on the batch, which has one crop for all then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from benchmarks.peers.datasets import augmented
from benchmarks.peers.feeds import Data, Feed
from benchmarks.peers.job import Job


class Batches:
    """Yields the tensors of each batch, transformed."""

    def __init__(self, loader: DataLoader[Any], feed: Feed) -> None:
        self.loader = loader
        self.feed = feed

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield (augmented(batch["samples"]), batch["labels"]) if self.feed.has_labels else batch["samples"]


def prepare(data: Data) -> None:
    pictures = torch.from_numpy(np.load(data.prepared))
    labels = torch.from_numpy(np.load(data.labels))
    TensorDict({"samples": pictures, "labels": labels}, [len(pictures)]).memmap(data.own("tensordict", "prepared"))
    tokens = torch.from_numpy(np.load(data.tokens).astype(np.int64))
    TensorDict({"samples": tokens}, [len(tokens)]).memmap(data.own("tensordict", "tokens"))


def _as_it_is(batch: Any) -> Any:
    return batch


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    rows: Any = TensorDict.load_memmap(data.own("tensordict", feed.name))
    return Batches(DataLoader(rows, feed.batch_size, shuffle=True, drop_last=True, collate_fn=_as_it_is), feed)
