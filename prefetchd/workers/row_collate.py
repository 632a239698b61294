"""Does default_collate's work without a batch: each sample's leaves go straight into their rows of the slot.

The first sample decides: its structure is compiled into a plan whose rows, written to scratch memory, must equal what
torch's default_collate makes of that one sample. A later sample that differs in structure, type, dtype or shape is a
`Deviation`; default_collate itself then decides what becomes of the batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from prefetchd.wire.slot_layout import DTYPES, PayloadMeta, RowLayout, ViewEntry, layout_payload
from prefetchd.workers.batch_codec import DTYPE_CODES, BatchPickler, encode_batch
from prefetchd.workers.row_leaves import Deviation, Leaf, Write, leaf_of

Bind = Callable[[Iterator[Write]], Write]
"""Makes the writer of one part of a sample of its leaves' writers, which it takes in order."""


class RowPlan:
    """The way in which one structure of samples is written by rows. `signature` is equal in all workers of a stream."""

    def __init__(self, sample: Any, collated: Any) -> None:
        """Compiles the structure of `sample`, which default_collate made `collated` of. Raises Deviation when it
        cannot be written by rows."""
        self._leaves: list[Leaf] = []
        names: list[str] = []
        self._bind = _compile(sample, collated, self._leaves, names)
        self.signature = "".join(names).encode()
        if not self._leaves:
            raise Deviation("a sample without tensors, arrays or numbers")

    def writer(self, layout: RowLayout, target: Any) -> Write:
        """Makes what writes a sample into a row of the payload that begins at `target`, a ctypes array."""
        write = self._bind(
            leaf.writer(target, layout.meta.storages[view.storage].offset, layout.rows)
            for leaf, view in zip(self._leaves, layout.meta.views)
        )

        def write_sample(row: int, sample: Any) -> None:
            try:
                write(row, sample)
            except Deviation:
                raise
            except Exception as error:
                # It cannot even be asked: a nested tensor has no shape, a user's class may raise whatever it likes.
                raise Deviation(f"{type(error).__name__}: {error}") from None

        return write_sample

    def layout(self, rows: int, collated: Any) -> RowLayout:
        """Computes the layout of batches of `rows` rows; `collated` is default_collate of one sample. Raises
        Deviation."""
        pickler = BatchPickler()
        encoded = pickler.encode(collated)
        tensors: list[torch.Tensor] = [leaf.collated for leaf in self._leaves]
        order = [pickler.view_index(tensor) for tensor in tensors]
        if order != list(range(len(tensors))) or len(encoded.meta.storages) != len(tensors):
            raise Deviation("default_collate's result is not one dense tensor a leaf")
        views = tuple(
            ViewEntry(k, DTYPE_CODES[tensor.dtype], 0, shape := (rows, *tensor.shape[1:]), _strides(shape))
            for k, tensor in enumerate(tensors)
        )
        sizes = [(tensor[0].numel() * tensor.element_size() * rows, 0) for tensor in tensors]
        return RowLayout(rows, self.signature, layout_payload(sizes, views, encoded.meta.skeleton))


def plan_rows(sample: Any, rows: int) -> tuple[RowPlan, RowLayout]:
    """Makes the plan and layout for a stream whose first sample is `sample`. Raises Deviation when its batches cannot
    be filled by rows, and whatever default_collate raises."""
    collated = default_collate([sample])
    plan = RowPlan(sample, collated)
    layout = plan.layout(rows, collated)
    _prove(plan, layout, sample, collated)
    return plan, layout


def collates_otherwise(additions: Iterable[Any]) -> bool:
    """Returns True when one of the types for which the user has a function in default_collate's table has plain values.
    What that function makes of a batch no single sample tells."""
    kinds = (torch.Tensor, np.ndarray, np.number, np.bool_, float, int, str, bytes, dict, list, tuple)
    asked = [each for key in additions for each in (key if isinstance(key, tuple) else (key,))]
    return any(issubclass(kind, each) for each in asked if isinstance(each, type) for kind in kinds)


def _prove(plan: RowPlan, layout: RowLayout, sample: Any, collated: Any) -> None:
    """Writes the sample as row 0 and compares with default_collate's own bytes. Raises Deviation when they differ."""
    expected = encode_batch(collated)
    single = RowLayout(1, layout.signature, _single(layout.meta))
    scratch = (ctypes.c_ubyte * max(single.meta.payload_bytes, expected.payload_bytes))()
    reference = type(scratch)()
    expected.write(reference)
    plan.writer(single, scratch)(0, sample)
    for view, entry in zip(single.meta.views, single.meta.storages):
        twin = expected.meta.storages[expected.meta.views[view.storage].storage]
        size = entry.storage_bytes
        begin = expected.meta.views[view.storage].storage_offset * (size and _item_bytes(view))
        ours = memoryview(scratch)[entry.offset : entry.offset + size]
        theirs = memoryview(reference)[twin.offset + begin : twin.offset + begin + size]
        if bytes(ours) != bytes(theirs):
            raise Deviation("writing by rows would not give default_collate's bytes")


def _single(meta: PayloadMeta) -> PayloadMeta:
    views = tuple(
        ViewEntry(view.storage, view.dtype, 0, shape := (1, *view.shape[1:]), _strides(shape)) for view in meta.views
    )
    rows = max(1, meta.views[0].shape[0])
    return layout_payload([(entry.storage_bytes // rows, entry.kind) for entry in meta.storages], views, meta.skeleton)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


def _item_bytes(view: ViewEntry) -> int:
    dtype: torch.dtype = getattr(torch, DTYPES[view.dtype])
    return dtype.itemsize


# --- the structure of a sample ---


def _compile(sample: Any, collated: Any, leaves: list[Leaf], names: list[str]) -> Bind:
    kind = type(sample)
    if kind is tuple or kind is list or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        return _compile_sequence(sample, collated, leaves, names)
    if kind is dict:
        return _compile_dict(sample, collated, leaves, names)
    leaf = leaf_of(sample, collated)
    leaves.append(leaf)
    names.append(leaf.name)
    return next


def _compile_sequence(sample: Any, collated: Any, leaves: list[Leaf], names: list[str]) -> Bind:
    kind, length = type(sample), len(sample)
    # default_collate makes a list of a tuple, and keeps the class of a named one.
    wanted = list if kind is tuple else kind
    if type(collated) is not wanted or len(collated) != length:
        raise Deviation(f"default_collate makes {type(collated).__name__} of {kind.__name__}")
    # In brackets: (a, (b, c)) and (a, b, c) are to have different signatures.
    names.append(f"{kind.__module__}.{kind.__qualname__}(")
    parts = [_compile(value, into, leaves, names) for value, into in zip(sample, collated)]
    names.append(")")

    def bind(writers: Iterator[Write]) -> Write:
        bound = [part(writers) for part in parts]

        def write(row: int, value: Any) -> None:
            if type(value) is not kind or len(value) != length:
                raise Deviation(f"not a {kind.__name__} of {length}")
            for part, item in zip(bound, value):
                part(row, item)

        return write

    return bind


def _compile_dict(sample: Any, collated: Any, leaves: list[Leaf], names: list[str]) -> Bind:
    if type(collated) is not dict or list(collated) != list(sample):
        raise Deviation("default_collate changes the dict's type or keys")
    keys = list(sample)
    names.append(f"dict{keys!r}(")
    parts = [_compile(sample[key], collated[key], leaves, names) for key in keys]
    names.append(")")

    def bind(writers: Iterator[Write]) -> Write:
        bound = [part(writers) for part in parts]

        def write(row: int, value: Any) -> None:
            # Their order too: a batch has the keys in the order of its own first sample.
            if type(value) is not dict or list(value) != keys:
                raise Deviation(f"not a dict of {keys!r}")
            for part, item in zip(bound, value.values()):
                part(row, item)

        return write

    return bind
