"""Writes one leaf of a sample, a tensor, an array or a number, into its row of the slot, as default_collate would.

A writer checks and copies in one go, since tiny samples pay for each of its steps. A value that is not what its
stream's first one was is a `Deviation`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from prefetchd.workers.batch_codec import DTYPE_CODES

Write = Callable[[int, Any], None]
"""Writes a value into a row, or raises Deviation, perhaps after having written some of it."""

_copy = ctypes.CDLL(None).memmove
_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
# What it returns nobody needs: ctypes.memmove makes a number of it.
_copy.restype = None

_REORDERED_BY_NUMPY = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16, torch.float32})
"""Where a row's numbers do not lie side by side, as those of a picture whose planes were interleaved, numpy copies
these in a third to two thirds of torch's time; of wider ones it is the slower."""

_PLAIN_NUMBERS = {int: ("q", torch.int64), float: ("d", torch.float64), bool: ("?", torch.bool)}


class Deviation(Exception):  # noqa: N818 - not an error: the batch is made another way
    """This sample does not fit the stream's row layout."""


class Leaf:
    """One tensor, array or number of a sample: what it must be, and how it becomes a row of `collated`'s kind."""

    def __init__(self, name: str, collated: torch.Tensor, write: Callable[[Rows], Write]) -> None:
        """Takes what tells leaves of its kind apart as `name`, and what makes a writer for rows of some bytes each."""
        self.name = name
        self.collated = collated
        self._write = write

    def writer(self, target: Any, offset: int, rows: int) -> Write:
        """Makes the writer of the leaf's `rows` rows, which begin `offset` bytes behind `target`, a ctypes array."""
        return self._write(Rows(self.collated, target, offset, rows))


class Rows:
    """Memory for the rows of one leaf."""

    def __init__(self, collated: torch.Tensor, target: Any, offset: int, rows: int) -> None:
        self.target = target
        self.offset = offset
        self.dtype = collated.dtype
        self.shape = (rows, *collated.shape[1:])
        self.row_bytes = collated[0].numel() * collated.element_size()
        self.address = ctypes.addressof(target) + offset

    @property
    def count(self) -> int:
        return int(self.shape[0]) * self.row_bytes // self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        if not self.row_bytes:
            return torch.empty(self.shape, dtype=self.dtype)
        found = torch.frombuffer(self.target, dtype=self.dtype, count=self.count, offset=self.offset)
        return found.view(self.shape)

    def array(self) -> Any:
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return np.frombuffer(self.target, dtype, self.count, self.offset).reshape(self.shape)


def leaf_of(sample: Any, collated: Any) -> Leaf:
    """Makes the leaf that `sample` is, of which default_collate made `collated`. Raises Deviation when it cannot be
    written by rows."""
    if type(collated) is not torch.Tensor or collated.requires_grad or not collated.is_contiguous():
        raise Deviation(f"default_collate makes {type(collated).__name__} of {type(sample).__name__}")
    if collated.dtype not in DTYPE_CODES or collated.dim() < 1:
        raise Deviation(f"dtype {collated.dtype}")
    kind = type(sample)
    if isinstance(sample, torch.Tensor):
        return _tensor_leaf(sample, collated)
    if kind is np.ndarray:
        return _array_leaf(sample, collated)
    if kind in _PLAIN_NUMBERS and collated.dtype == _PLAIN_NUMBERS[kind][1]:
        return _plain_number_leaf(kind, collated)
    if kind in _PLAIN_NUMBERS or isinstance(sample, (np.number, np.bool_)):
        return _number_leaf(kind, collated)
    raise Deviation(f"a leaf of type {kind.__name__}")


def _tensor_leaf(sample: torch.Tensor, collated: torch.Tensor) -> Leaf:
    kind, dtype, shape, strided = type(sample), sample.dtype, sample.shape, torch.strided
    if collated.dtype != dtype or tuple(collated.shape) != (1, *shape):
        raise Deviation("default_collate changes a tensor's dtype or shape")
    # Integers have neither, and asking takes time. The imaginary part of a conjugate is real, and pending negation.
    may_require_grad = may_be_negated = dtype.is_floating_point or dtype.is_complex
    may_be_conjugated = dtype.is_complex
    name = f"{kind.__module__}.{kind.__qualname__}[{dtype},{tuple(shape)}]"

    def writer(rows: Rows) -> Write:
        address, size, whole = rows.address, rows.row_bytes, rows.tensor()
        array = rows.array() if dtype in _REORDERED_BY_NUMPY else None

        def write(row: int, value: torch.Tensor) -> None:
            if not (
                type(value) is kind
                and value.dtype is dtype
                and value.layout is strided
                and value.shape == shape
                and value.is_cpu
                and not (may_require_grad and value.requires_grad)
            ):
                raise Deviation(f"a leaf that is not {name}")
            begin = value.data_ptr()
            # Wrapped tensors and symbolic zeros have no address.
            is_plain = begin and not (may_be_negated and value.is_neg()) and not (may_be_conjugated and value.is_conj())
            if is_plain and value.is_contiguous():
                _copy(address + row * size, begin, size)
            elif is_plain and array is not None and value.stride(-1) != 1:
                array[row] = value.numpy()
            else:
                whole[row].copy_(value)

        return write

    return Leaf(name, collated, writer)


def _array_leaf(sample: Any, collated: torch.Tensor) -> Leaf:
    dtype, shape = sample.dtype, sample.shape
    if tuple(collated.shape) != (1, *shape):
        raise Deviation("default_collate changes an array's shape")
    name = f"numpy.ndarray[{dtype.str},{shape}]"

    def writer(rows: Rows) -> Write:
        whole, array = rows.array(), np.ndarray

        def write(row: int, value: Any) -> None:
            if not (
                type(value) is array
                # Not `is`: numpy has several objects for one dtype.
                and value.dtype == dtype
                and value.shape == shape
                and (value.flags.c_contiguous or _can_be_looked_at(value))
            ):
                raise Deviation(f"a leaf that is not {name}")
            whole[row] = value

        return write

    return Leaf(name, collated, writer)


def _can_be_looked_at(value: Any) -> bool:
    # torch.as_tensor refuses strides that are negative or no whole items: then default_collate must say so.
    return all(stride >= 0 and not stride % value.itemsize for stride in value.strides)


def _plain_number_leaf(kind: type, collated: torch.Tensor) -> Leaf:
    form, _ = _PLAIN_NUMBERS[kind]

    def writer(rows: Rows) -> Write:
        # As C has them: a tenth of the time that an array's element takes.
        numbers = memoryview(rows.array()).cast("B").cast(form)  # type: ignore[call-overload]

        def write(row: int, value: Any) -> None:
            if type(value) is not kind:
                raise Deviation(f"a leaf that is not {kind.__name__}")
            # An integer that is too large is a ValueError here.
            numbers[row] = value

        return write

    return Leaf(kind.__name__, collated, writer)


def _number_leaf(kind: type, collated: torch.Tensor) -> Leaf:
    name = kind.__name__ if kind in _PLAIN_NUMBERS else f"numpy.{kind.__name__}"

    def writer(rows: Rows) -> Write:
        whole = rows.array()

        def write(row: int, value: Any) -> None:
            if type(value) is not kind:
                raise Deviation(f"a leaf that is not {name}")
            whole[row] = value

        return write

    return Leaf(name, collated, writer)
