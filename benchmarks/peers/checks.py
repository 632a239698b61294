"""Checked holds a contestant to what was asked: shapes, types, numbers of samples, pictures that are pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from benchmarks.peers.feeds import VOCABULARY, WORKERS, Feed

Batch = tuple[torch.Tensor, torch.Tensor | None]
PAGE_BYTES = 4096


class NotAsAskedError(Exception):
    """Raised for a batch, or an epoch, that is not what was asked for."""


class Checked:
    """Iterates over a contestant's batches; each is (samples, labels), labels None where the feed has none."""

    def __init__(self, batches: Iterable[Any], feed: Feed) -> None:
        self.batches = batches
        self.feed = feed
        self._was_looked_at = False

    def __iter__(self) -> Iterator[Batch]:
        """Begins an epoch. Raises NotAsAskedError."""
        count = 0
        for batch in self.batches:
            samples, labels = batch if self.feed.has_labels else (batch, None)
            # Once: it takes as long as some batches do.
            if not self._was_looked_at:
                look_at(samples, labels, self.feed)
                self._was_looked_at = True
            has_form(samples, labels, self.feed)
            count += len(samples)
            yield samples, labels
            del batch, samples, labels
        is_whole(count, self.feed)


def has_form(samples: Any, labels: Any, feed: Feed) -> None:
    """Raises NotAsAskedError for tensors of another form."""
    wanted = (feed.batch_size, *feed.shape)
    if not isinstance(samples, torch.Tensor) or tuple(samples.shape) != wanted:
        raise NotAsAskedError(f"{type(samples).__name__} {tuple(getattr(samples, 'shape', ()))}, asked for {wanted}")
    if str(samples.dtype) != f"torch.{feed.dtype}":
        raise NotAsAskedError(f"{samples.dtype}, asked for {feed.dtype}")
    if feed.has_labels and (tuple(labels.shape), labels.dtype) != ((feed.batch_size,), torch.int64):
        raise NotAsAskedError(f"labels {labels.dtype} {tuple(labels.shape)}, asked for {feed.batch_size} of int64")


def look_at(samples: torch.Tensor, labels: Any, feed: Feed) -> None:
    """Raises NotAsAskedError where the values cannot be those of this feed."""
    values = samples.float()
    mean, deviation = float(values.mean()), float(values.std())
    if feed.name == "tokens":
        lowest, highest = int(samples.min()), int(samples.max())
        if lowest < 0 or highest >= VOCABULARY or deviation < VOCABULARY / 10:
            raise NotAsAskedError(f"tokens from {lowest} to {highest}, deviation {deviation:.0f}, of {VOCABULARY}")
        return
    low, high, least = (-2.0, 2.0, 0.3) if feed.dtype == "float32" else (20.0, 235.0, 20.0)
    if not low < mean < high or deviation < least:
        raise NotAsAskedError(f"mean {mean:.2f}, deviation {deviation:.2f}: these are no pictures")
    if feed.has_labels and not 0 <= int(labels.min()) <= int(labels.max()) < 10:
        raise NotAsAskedError(f"labels from {int(labels.min())} to {int(labels.max())}, of 10 classes")


def is_whole(count: int, feed: Feed) -> None:
    """Raises NotAsAskedError for an epoch of too few samples: each worker may drop one batch that is not full."""
    least = feed.samples - (WORKERS + 1) * feed.batch_size
    if not least < count <= feed.samples:
        raise NotAsAskedError(f"an epoch of {count} samples, asked for {feed.samples} less batches that are not full")


def touch(samples: torch.Tensor) -> int:
    """Reads a value of each page, as a trainer reads all of it: memory that only was promised does not count."""
    flat = samples.permute(0, 2, 3, 1) if samples.dim() == 4 and not samples.is_contiguous() else samples
    return int(flat.reshape(-1)[:: PAGE_BYTES // samples.element_size()].sum())
