"""Encodes a sample for another worker of the same program, and decodes it there: the very same sample, but for where
its bytes lie.

Tensors that share a storage do so afterwards. Of a storage only the bytes that they cover are carried. Arrays are in
memory of their own afterwards, as rows or columns first, as they were. What cannot be carried so raises
UnshareableError: it is loaded where it is used. Objects of other classes than these and plain values are none of it:
collate_fn may ask which object it is given, and the order of a set is that of its own making.
"""

from __future__ import annotations

import io
import pickle
import struct
import types
from typing import Any, Literal

import numpy as np
import torch

from prefetchd.workers.plain_tensors import is_plain_tensor
from prefetchd.workers.shared_samples import MOST_SAMPLE_BYTES

_LENGTH = struct.Struct("=q")

_PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict)
# Functions and what torch has one of: found again by their names.
_FOUND = (types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.Size, torch.device)
_CARRIED = frozenset((*_PLAIN, *_FOUND, np.ndarray))
_ALSO_SUBCLASSES = (np.generic, np.dtype, type)


class UnshareableError(Exception):
    """The sample cannot be handed to another process."""


def encode_sample(sample: Any) -> list[Any]:
    """Returns the sample in parts, to be written one after another. Raises UnshareableError."""
    text = io.BytesIO()
    pickler = _SamplePickler(text)
    try:
        pickler.dump(sample)
    except Exception as error:
        raise UnshareableError(f"{type(error).__qualname__}: {error}") from None
    blobs = [storage.bytes() for storage in pickler.storages]
    head = pickle.dumps((text.getvalue(), [(each.low, len(blob)) for each, blob in zip(pickler.storages, blobs)]))
    if len(head) + sum(map(len, blobs)) > MOST_SAMPLE_BYTES:
        raise UnshareableError(f"it takes more than {MOST_SAMPLE_BYTES} bytes")
    return [_LENGTH.pack(len(head)), head, *blobs]


def decode_sample(data: bytearray) -> Any:
    """Returns the sample whose parts, one after another, are `data`; tensors look at that memory."""
    view = memoryview(data)
    begin = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    text, sizes = pickle.loads(view[_LENGTH.size : begin])
    storages = []
    for low, size in sizes:
        # A storage of its own: nobody may see that samples have come together.
        flat = torch.empty(size, dtype=torch.uint8)
        if size:
            flat.copy_(torch.frombuffer(view, dtype=torch.uint8, count=size, offset=begin))
        storages.append((low, flat.untyped_storage()))
        begin += size
    return _SampleUnpickler(io.BytesIO(text), storages).load()


class _Storage:
    """What tensors of a sample cover of a storage: bytes [low, high)."""

    def __init__(self, storage: torch.UntypedStorage, low: int, high: int) -> None:
        self.storage, self.low, self.high = storage, low, high

    def bytes(self) -> memoryview:
        whole = torch.empty(0, dtype=torch.uint8).set_(self.storage)
        return memoryview(whole[self.low : self.high].numpy())  # type: ignore[arg-type]


class _SamplePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.storages: list[_Storage] = []
        self._index_of: dict[int, int] = {}
        # An address names a storage as long as that lives.
        self._kept: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor and is_plain_tensor(obj):
            return self._view(obj)
        if kind not in _CARRIED and not issubclass(kind, _ALSO_SUBCLASSES) and not _is_named_tuple(kind):
            raise UnshareableError(f"it holds a {kind.__qualname__}")
        return None

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and not obj.dtype.hasobject:
            order: Literal["C", "F"] = "C" if obj.flags.c_contiguous else "F"
            if order == "F" and not obj.flags.f_contiguous:
                raise UnshareableError("it holds an array that is no block of memory")
            return _array, (obj.tobytes(order), obj.dtype, obj.shape, order, obj.flags.writeable)
        return NotImplemented

    def _view(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        item, first = tensor.element_size(), int(tensor.storage_offset())
        low = first * item
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) if tensor.numel() else -1
        high = low + (last + 1) * item
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        index = self._index_of.get(address) if address else None
        if index is None:
            index = len(self.storages)
            self.storages.append(_Storage(storage, low - low % 16, high))
            if address:
                self._index_of[address] = index
        else:
            found = self.storages[index]
            found.low, found.high = min(found.low, low - low % 16), max(found.high, high)
        self._kept.append(tensor)
        return index, tensor.dtype, first, tuple(tensor.shape), tensor.stride()


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


class _SampleUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, storages: list[tuple[int, torch.UntypedStorage]]) -> None:
        super().__init__(file)
        self._storages = storages

    def persistent_load(self, pid: Any) -> Any:
        index, dtype, first, shape, stride = pid
        low, storage = self._storages[index]
        tensor = torch.empty(0, dtype=dtype)
        if 0 in shape:
            return torch.empty_strided(shape, stride, dtype=dtype)
        return tensor.set_(storage, first - low // tensor.element_size(), shape, stride)


def _array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: str, writeable: bool) -> Any:
    found = np.empty(shape, dtype, order)  # type: ignore[call-overload]
    found.reshape(-1, order=order)[...] = np.frombuffer(data, dtype)
    found.flags.writeable = writeable
    return found
