"""Does default_collate's work without a batch: each sample's leaves go straight into their rows of the slot.

The first sample decides: its structure is compiled into a plan whose rows, written to scratch memory, must equal what
torch's default_collate makes of that one sample. A later sample that differs in structure, type, dtype or shape is a
`Deviation`; default_collate itself then decides what becomes of the batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from prefetchd.wire.slot_layout import DTYPES, PayloadMeta, RowLayout, ViewEntry, layout_payload
from prefetchd.workers.batch_codec import DTYPE_CODES, BatchPickler, encode_batch

Take = Callable[[Any, list[Any]], None]
"""Appends a sample's leaves to a list, or raises Deviation."""

Write = Callable[[int, Any], None]
"""Writes one leaf into one row, or raises Deviation."""


class Deviation(Exception):  # noqa: N818 - not an error: the batch is made another way
    """This sample does not fit the stream's row layout."""


class RowPlan:
    """The way in which one structure of samples is written by rows. `signature` is equal in all workers of a stream."""

    def __init__(self, sample: Any, collated: Any) -> None:
        """Compiles the structure of `sample`, which default_collate made `collated` of. Raises Deviation when it
        cannot be written by rows."""
        self._leaves: list[_Leaf] = []
        names: list[str] = []
        self._take = _compile(sample, collated, self._leaves, names)
        self.signature = "".join(names).encode()
        if not self._leaves:
            raise Deviation("a sample without tensors, arrays or numbers")

    def take(self, sample: Any) -> list[Any]:
        """Returns the sample's leaves in order. Raises Deviation."""
        leaves: list[Any] = []
        try:
            self._take(sample, leaves)
        except Deviation:
            raise
        except Exception as error:
            # It cannot even be asked: a nested tensor has no shape, a user's class may raise whatever it likes.
            raise Deviation(f"{type(error).__name__}: {error}") from None
        return leaves

    def writers(self, layout: RowLayout, target: Any) -> list[Write]:
        """Makes one writer a leaf, into the payload that begins at `target`, a ctypes array."""
        return [
            leaf.writer(target, layout.meta.storages[view.storage].offset, layout.rows)
            for leaf, view in zip(self._leaves, layout.meta.views)
        ]

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


def _prove(plan: RowPlan, layout: RowLayout, sample: Any, collated: Any) -> None:
    """Writes the sample as row 0 and compares with default_collate's own bytes. Raises Deviation when they differ."""
    expected = encode_batch(collated)
    single = RowLayout(1, layout.signature, _single(layout.meta))
    scratch = (ctypes.c_ubyte * max(single.meta.payload_bytes, expected.payload_bytes))()
    reference = type(scratch)()
    expected.write(reference)
    for write, leaf in zip(plan.writers(single, scratch), plan.take(sample)):
        write(0, leaf)
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


def _compile(sample: Any, collated: Any, leaves: list[_Leaf], names: list[str]) -> Take:
    kind = type(sample)
    if kind is tuple or kind is list or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        return _compile_sequence(sample, collated, leaves, names)
    if kind is dict:
        return _compile_dict(sample, collated, leaves, names)
    leaf = _leaf_of(sample, collated)
    leaves.append(leaf)
    names.append(leaf.name)
    fits = leaf.fits

    def take(value: Any, found: list[Any]) -> None:
        if not fits(value):
            raise Deviation(f"a leaf that is not {leaf.name}")
        found.append(value)

    return take


def _compile_sequence(sample: Any, collated: Any, leaves: list[_Leaf], names: list[str]) -> Take:
    kind, length = type(sample), len(sample)
    wanted = list if kind is tuple else kind
    if type(collated) is not wanted or len(collated) != length:
        raise Deviation(f"default_collate makes {type(collated).__name__} of {kind.__name__}")
    names.append(f"{kind.__module__}.{kind.__qualname__}(")
    parts = [_compile(value, into, leaves, names) for value, into in zip(sample, collated)]
    names.append(")")

    def take(value: Any, found: list[Any]) -> None:
        if type(value) is not kind or len(value) != length:
            raise Deviation(f"not a {kind.__name__} of {length}")
        for part, item in zip(parts, value):
            part(item, found)

    return take


def _compile_dict(sample: Any, collated: Any, leaves: list[_Leaf], names: list[str]) -> Take:
    if type(collated) is not dict or list(collated) != list(sample):
        raise Deviation("default_collate changes the dict's type or keys")
    keys = list(sample)
    names.append(f"dict{keys!r}(")
    parts = [(key, _compile(sample[key], collated[key], leaves, names)) for key in keys]
    names.append(")")

    def take(value: Any, found: list[Any]) -> None:
        # Their order too: a batch has the keys in the order of its own first sample.
        if type(value) is not dict or list(value) != keys:
            raise Deviation(f"not a dict of {keys!r}")
        for key, part in parts:
            part(value[key], found)

    return take


# --- leaves ---


class _Leaf:
    """One tensor, array or number of a sample: what it must be, and how it becomes a row of `collated`'s kind."""

    def __init__(self, name: str, collated: torch.Tensor, fits: Callable[[Any], bool], kind: str) -> None:
        self.name = name
        self.collated = collated
        self.fits = fits
        self._kind = kind
        self._dtype = collated.dtype
        self._row_shape = tuple(collated.shape[1:])
        self._row_bytes = collated[0].numel() * collated.element_size()

    def writer(self, target: Any, offset: int, rows: int) -> Write:
        if self._row_bytes == 0:
            return lambda row, value: None
        if self._kind == "tensor":
            return self._tensor_writer(target, offset, rows)
        return self._array_writer(target, offset, rows)

    def _tensor_writer(self, target: Any, offset: int, rows: int) -> Write:
        begin, size = ctypes.addressof(target) + offset, self._row_bytes
        count = rows * size // self._dtype.itemsize
        whole = torch.frombuffer(target, dtype=self._dtype, count=count, offset=offset).view(rows, *self._row_shape)
        memmove = ctypes.memmove

        def write(row: int, value: torch.Tensor) -> None:
            address = value.data_ptr()
            # Wrapped tensors and symbolic zeros have no address.
            if address and value.is_contiguous() and not value.is_conj() and not value.is_neg():
                memmove(begin + row * size, address, size)
            else:
                whole[row].copy_(value)

        return write

    def _array_writer(self, target: Any, offset: int, rows: int) -> Write:
        count = rows * self._row_bytes // self._dtype.itemsize
        dtype = torch.empty(0, dtype=self._dtype).numpy().dtype
        whole = np.frombuffer(target, dtype, count, offset).reshape(rows, *self._row_shape)

        def write(row: int, value: Any) -> None:
            try:
                whole[row] = value
            except OverflowError:
                raise Deviation(f"{value!r} does not fit {dtype}") from None

        return write


def _leaf_of(sample: Any, collated: Any) -> _Leaf:
    if type(collated) is not torch.Tensor or collated.requires_grad or not collated.is_contiguous():
        raise Deviation(f"default_collate makes {type(collated).__name__} of {type(sample).__name__}")
    if collated.dtype not in DTYPE_CODES or collated.dim() < 1:
        raise Deviation(f"dtype {collated.dtype}")
    kind = type(sample)
    if isinstance(sample, torch.Tensor):
        return _tensor_leaf(sample, collated)
    if kind is np.ndarray:
        return _array_leaf(sample, collated)
    if kind in (int, float, bool):
        return _Leaf(kind.__name__, collated, lambda value: type(value) is kind, "number")
    if isinstance(sample, (np.number, np.bool_)):
        name = f"numpy.{kind.__name__}"
        return _Leaf(name, collated, lambda value: type(value) is kind, "number")
    raise Deviation(f"a leaf of type {kind.__name__}")


def _tensor_leaf(sample: torch.Tensor, collated: torch.Tensor) -> _Leaf:
    kind, dtype, shape = type(sample), sample.dtype, sample.shape
    if collated.dtype != dtype or tuple(collated.shape) != (1, *shape):
        raise Deviation("default_collate changes a tensor's dtype or shape")
    strided = torch.strided

    def fits(value: Any) -> bool:
        return (
            type(value) is kind
            and value.dtype is dtype
            and value.layout is strided
            and value.shape == shape
            and value.is_cpu
            and not value.requires_grad
        )

    if not fits(sample):
        raise Deviation("a tensor that is not dense, on the CPU and without grad")
    name = f"{kind.__module__}.{kind.__qualname__}[{dtype},{tuple(shape)}]"
    return _Leaf(name, collated, fits, "tensor")


def _array_leaf(sample: Any, collated: torch.Tensor) -> _Leaf:
    dtype, shape = sample.dtype, sample.shape
    item = dtype.itemsize
    if tuple(collated.shape) != (1, *shape):
        raise Deviation("default_collate changes an array's shape")

    def fits(value: Any) -> bool:
        # torch.as_tensor refuses strides that are negative or no whole items: then default_collate must say so.
        return (
            type(value) is np.ndarray
            and value.dtype == dtype
            and value.shape == shape
            and all(stride >= 0 and not stride % item for stride in value.strides)
        )

    if not fits(sample):
        raise Deviation("an array that torch cannot look at")
    return _Leaf(f"numpy.ndarray[{dtype.str},{shape}]", collated, fits, "array")
