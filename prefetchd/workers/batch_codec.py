"""Encodes a batch into a slot: any structure that DataLoader could carry, its bytes beside its skeleton (slot_layout).

The structure is pickled; tensors, bare storages and large out-of-band buffers leave a persistent id behind, and their
bytes are copied straight from where they are. Views of one storage stay views of one storage; of a storage that only
views look at, just the bytes that they cover are copied.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import io
import pickle
from typing import Any

import torch

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.slot_layout import (
    BUFFER,
    DTYPES,
    TENSOR,
    PayloadMeta,
    ViewEntry,
    encode_meta,
    layout_payload,
)
from prefetchd.workers.class_names import ClassNamingPickler
from prefetchd.workers.plain_tensors import is_plain_tensor

SMALLEST_BUFFER_BYTES = 512

DTYPE_CODES: dict[torch.dtype, int] = {
    getattr(torch, name): code for code, name in enumerate(DTYPES) if hasattr(torch, name)
}


@dataclasses.dataclass
class _Source:
    """Bytes to be copied: [low, high) of the memory at `address`, kept alive by `owner`."""

    owner: Any
    address: int
    low: int
    high: int
    kind: int = TENSOR


class EncodedBatch:
    """A batch ready to be written: `payload_bytes` long. Holds references to the batch's own memory, no copies."""

    def __init__(self, meta: PayloadMeta, sources: list[_Source]) -> None:
        self.meta = meta
        self.meta_text = encode_meta(meta)
        self._sources = sources

    @property
    def payload_bytes(self) -> int:
        return self.meta.payload_bytes

    def write(self, target: Any) -> None:
        """Copies the batch to the start of `target`, a ctypes array of at least `payload_bytes`."""
        address = ctypes.addressof(target)
        ctypes.memmove(address, self.meta_text, len(self.meta_text))
        for source, entry in zip(self._sources, self.meta.storages):
            kill_point("worker.whole.half")
            ctypes.memmove(address + entry.offset, source.address + source.low, source.high - source.low)


def encode_batch(batch: Any) -> EncodedBatch:
    """Encodes the batch as skeleton, tables and sources. Raises whatever pickling it raises."""
    return BatchPickler().encode(batch)


class BatchPickler(ClassNamingPickler):
    """Pickles one batch and collects what is to be copied. For one use."""

    def __init__(self) -> None:
        self._skeleton = io.BytesIO()
        self._sources: list[_Source] = []
        # A method of this pickler's would make a cycle, which keeps the whole batch until the garbage collector comes.
        super().__init__(self._skeleton, 5, buffer_callback=functools.partial(_out_of_band, self._sources))
        self.views: list[ViewEntry] = []
        self._view_of: dict[int, int] = {}
        self._storage_of: dict[int, int] = {}
        self._kept: list[Any] = []

    def encode(self, batch: Any) -> EncodedBatch:
        self.dump(batch)
        # Views count from the first byte that is copied of their storage.
        views = tuple(
            dataclasses.replace(view, storage_offset=view.storage_offset - low)
            if (low := self._low_element(view))
            else view
            for view in self.views
        )
        sizes = [(source.high - source.low, source.kind) for source in self._sources]
        return EncodedBatch(layout_payload(sizes, views, self._skeleton.getvalue()), self._sources)

    def view_index(self, tensor: torch.Tensor) -> int | None:
        """Returns the tensor's index in the view table, or None when it was pickled another way."""
        return self._view_of.get(id(tensor))

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor:
            return self._view(obj) if is_plain_tensor(obj) and obj.dtype in DTYPE_CODES else None
        if kind is torch.UntypedStorage:
            return ("storage", self._whole_storage(obj), "")
        if kind is torch.TypedStorage:
            untyped = obj._untyped_storage
            return ("storage", self._whole_storage(untyped), str(obj.dtype).removeprefix("torch."))
        return super().persistent_id(obj)

    def _view(self, tensor: torch.Tensor) -> int:
        known = self._view_of.get(id(tensor))
        if known is not None:
            return known
        storage = tensor.untyped_storage()
        item = tensor.element_size()
        offset = int(tensor.storage_offset())
        first = offset * item
        if tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            end = first + (last + 1) * item
        else:
            end = first
        index = self._storage(storage, first, end)
        self.views.append(ViewEntry(index, DTYPE_CODES[tensor.dtype], offset, tuple(tensor.shape), tensor.stride()))
        self._view_of[id(tensor)] = len(self.views) - 1
        self._kept.append(tensor)
        return len(self.views) - 1

    def _storage(self, storage: torch.UntypedStorage, low: int, high: int) -> int:
        # An address tells storages apart while they live, and `_kept` keeps them.
        address = storage.data_ptr()
        index = self._storage_of.get(address) if address else None
        if index is None:
            index = len(self._sources)
            self._sources.append(_Source(storage, address, low - low % 16, high))
            if address:
                self._storage_of[address] = index
            return index
        source = self._sources[index]
        source.low = min(source.low, low - low % 16)
        source.high = max(source.high, high)
        return index

    def _whole_storage(self, storage: torch.UntypedStorage) -> int:
        return self._storage(storage, 0, storage.nbytes())

    def _low_element(self, view: ViewEntry) -> int:
        # Item sizes are powers of two up to 16, so `low` is a whole number of elements of any view.
        return self._sources[view.storage].low // _ITEM_BYTES[view.dtype]


def _out_of_band(sources: list[_Source], buffer: pickle.PickleBuffer) -> bool:
    raw = buffer.raw()
    if raw.nbytes < SMALLEST_BUFFER_BYTES:
        return True
    address = ctypes.addressof(ctypes.c_char.from_buffer(raw)) if not raw.readonly else _address_of(raw)
    sources.append(_Source((buffer, raw), address, 0, raw.nbytes, BUFFER))
    return False


_ITEM_BYTES = {code: dtype.itemsize for dtype, code in DTYPE_CODES.items()}


def _address_of(readonly: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(readonly, dtype=np.uint8).ctypes.data)
