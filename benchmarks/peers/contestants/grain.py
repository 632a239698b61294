"""Grain: a chain of transforms over an index, in worker processes; numpy arrays, which become tensors without a copy.

As on https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html and
https://google-grain.readthedocs.io/en/latest/tutorials/dataset_advanced_tutorial.html: MapDataset.source, seed,
shuffle, repeat, random_map, batch, to_iter_dataset, mp_prefetch. A process reads ahead in threads of its own: one here,
as more than two are not asked for. Tried and left out: threads instead of processes, no faster for JPEGs and slower for
the others; start_prefetch as the loader is made, with which two loaders came to no batch within a minute.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import grain
import numpy as np
import torch
from PIL import Image

from benchmarks.peers.datasets import augmented, picture_transform
from benchmarks.peers.feeds import WORKERS, Data, Feed, listed_for
from benchmarks.peers.job import Job

READ_AHEAD = 2


class Rows:
    """Reads rows of a file that is mapped, with their labels if there are any. Each process maps it itself: what is
    pickled to the workers are paths."""

    def __init__(self, feed: str, data: Data) -> None:
        self.path = data.prepared if feed == "prepared" else data.tokens
        self.labels = np.load(data.labels) if feed == "prepared" else None
        self.length = len(np.load(self.path, mmap_mode="r"))

    @functools.cached_property
    def rows(self) -> np.ndarray[Any, Any]:
        return np.load(self.path, mmap_mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "rows"}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return (row, self.labels[index]) if self.labels is not None else row.astype(np.int64)


class Decode:
    """Decodes and transforms a JPEG; torchvision draws from torch's generator, which takes grain's seed."""

    def __init__(self, feed: str) -> None:
        self.transform = picture_transform(feed)

    def __call__(self, sample: tuple[str, int], chance: np.random.Generator) -> Any:
        torch.manual_seed(int(chance.integers(2**31)))
        with Image.open(sample[0]) as image:
            return self.transform(image.convert("RGB")).numpy(), np.int64(sample[1])


def _augmented(sample: tuple[Any, Any], chance: np.random.Generator) -> Any:
    torch.manual_seed(int(chance.integers(2**31)))
    return augmented(torch.from_numpy(sample[0].copy())).numpy(), sample[1]


def _one_thread(worker: int, workers: int) -> None:
    """As DataLoader's workers have it: two processes of as many threads as CPUs would be in each other's way."""
    torch.set_num_threads(1)


class Tensors:
    """Yields batches as tensors, on and on: grain's iterator goes through all epochs."""

    def __init__(self, dataset: Any) -> None:
        self.iterator = iter(dataset)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.iterator:
            yield tuple(map(torch.from_numpy, batch)) if isinstance(batch, tuple) else torch.from_numpy(batch)


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    if feed.name.startswith("jpeg"):
        source: Any = [(str(path), label) for path, label in listed_for(feed.name, data.pictures)]
    else:
        source = Rows(feed.name, data)
    dataset = grain.MapDataset.source(source).seed(0)
    dataset = dataset if feed.name == "jpeg-validation" else dataset.shuffle()
    dataset = dataset.repeat()
    if feed.name.startswith("jpeg"):
        dataset = dataset.random_map(Decode(feed.name))
    elif feed.name == "prepared":
        dataset = dataset.random_map(_augmented)
    batches = dataset.batch(feed.batch_size, drop_remainder=True)
    return Tensors(
        batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=READ_AHEAD)).mp_prefetch(
            grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=READ_AHEAD), _one_thread
        )
    )
