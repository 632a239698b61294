"""Makes batches of a dataset that copies samples itself: by rows, over all workers, straight into the slot.

Such a dataset has a method gather_into(indices, targets): it copies the samples' leaves, in the order in which
default_collate meets them, into the rows of `targets`, one dense tensor a leaf, and returns the places of those that it
has not. A plain stack of them is what default_collate would make. torch's Subset of such a dataset is one as well. A
subclass whose samples are others than those of the class with gather_into() is none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Subset

from prefetchd.wire.sample_methods import goes_with_samples
from prefetchd.wire.slot_layout import DTYPES, RowLayout

Gather = Callable[[Sequence[int], Sequence[torch.Tensor]], Sequence[int]]


def gather_of(dataset: Any) -> Gather | None:
    """Returns what copies samples of `dataset` into rows; None when it does not."""
    if type(dataset) is Subset:
        inner = gather_of(dataset.dataset)
        if inner is None:
            return None
        indices = dataset.indices
        return lambda places, targets: inner([indices[place] for place in places], targets)
    return dataset.gather_into if goes_with_samples(type(dataset), "gather_into") else None


def rows_of(layout: RowLayout, target: Any, first: int, end: int) -> list[torch.Tensor]:
    """Returns rows [first, end) of each leaf, in the payload that begins at `target`, a ctypes array."""
    found = []
    for view in layout.meta.views:
        dtype: torch.dtype = getattr(torch, DTYPES[view.dtype])
        entry = layout.meta.storages[view.storage]
        row_bytes = entry.storage_bytes // layout.rows
        size = (end - first) * row_bytes
        if not size:
            found.append(torch.empty(end - first, *view.shape[1:], dtype=dtype))
            continue
        memory = (ctypes.c_ubyte * size).from_buffer(target, entry.offset + first * row_bytes)
        found.append(torch.frombuffer(memory, dtype=dtype).view(end - first, *view.shape[1:]))
    return found


def runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Groups ascending `places` into half-open runs."""
    found: list[tuple[int, int]] = []
    for place in places:
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found
