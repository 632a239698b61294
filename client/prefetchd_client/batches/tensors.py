"""BatchReader turns a slot's payload into the batch: tensors that look straight at shared memory.

Every tensor and array of a batch keeps the payload's ctypes array alive; when the last of them is gone the array is,
and a weakref tells. (An mmap would not do: torch.frombuffer holds no export of it, and numpy drops intermediate objects
from its chains of bases.)
"""

from __future__ import annotations

import ctypes
import io
import pickle
from typing import Any

import torch

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.slot_layout import BUFFER, DTYPE_BYTES, DTYPES, PayloadMeta, ViewEntry, decode_meta, meta_length
from prefetchd_client.batches.class_lookup import find_named
from prefetchd_client.batches.skeletons import compile_skeleton

REMEMBERED_META_BYTES = 4096
REMEMBERED = 64

_TORCH_DTYPES: list[torch.dtype | None] = [getattr(torch, name, None) for name in DTYPES]


class BatchReader:
    """Decodes payloads. Remembers what short metas mean: batches filled by rows have but two or three."""

    def __init__(self) -> None:
        self._recipes: dict[bytes, _Recipe] = {}
        self._last_meta = b"\0"
        self._last: _Recipe | None = None

    def read(self, payload: Any, memory: Any = b"", offset: int = 0) -> Any:
        """Returns the batch in `payload`, a ctypes array; its tensors look at that memory. `memory` from `offset` on
        holds at least the payload's first page: a batch whose meta equals that of the batch before is recognised there.
        Raises ProtocolError."""
        last = self._last_meta
        if memory[offset : offset + len(last)] == last and self._last is not None:
            return self._last.build(payload)
        view = memoryview(payload).cast("B")
        meta = bytes(view[: meta_length(view)])
        recipe = self._recipes.get(meta)
        if recipe is None:
            recipe = _Recipe(decode_meta(meta))
            if len(meta) <= REMEMBERED_META_BYTES:
                if len(self._recipes) >= REMEMBERED:
                    self._recipes.clear()
                self._recipes[meta] = recipe
        if len(meta) <= REMEMBERED_META_BYTES:
            self._last_meta, self._last = meta, recipe
        return recipe.build(payload)


def private_copy(payload: Any) -> Any:
    """Returns a ctypes array of ordinary memory with the same batch."""
    view = memoryview(payload).cast("B")
    size = decode_meta(view[: meta_length(view)]).payload_bytes
    copy = (ctypes.c_ubyte * size)()
    ctypes.memmove(copy, payload, size)
    return copy


class _Recipe:
    """Holds what a meta says, ready to be applied to any payload that begins with that meta."""

    def __init__(self, meta: PayloadMeta) -> None:
        self._skeleton = meta.skeleton
        self._storages = meta.storages
        users = [view.storage for view in meta.views]
        self._views = [
            _ViewRecipe(view, meta, shared=users.count(view.storage) > 1 or _covers_part(view, meta))
            for view in meta.views
        ]
        self._buffers = [entry for entry in meta.storages if entry.kind == BUFFER]
        self._plain = compile_skeleton(meta.skeleton, len(meta.views)) if not self._buffers else None
        self._is_direct = self._plain is not None and all(recipe.direct is not None for recipe in self._views)
        self._direct = [recipe.direct for recipe in self._views if recipe.direct is not None]

    def build(self, payload: Any) -> Any:
        if self._is_direct and self._plain is not None:
            # The usual case once more, in as few steps as there are: in cold caches each of them is slow.
            frombuffer = torch.frombuffer
            return self._plain(
                [
                    frombuffer(payload, dtype=dtype, count=count, offset=offset).view(shape)
                    for dtype, count, offset, shape in self._direct
                ]
            )
        view = memoryview(payload).cast("B")
        storages = _Storages(payload, self._storages)
        tensors = [recipe.build(payload, storages) for recipe in self._views]
        if self._plain is not None:
            return self._plain(tensors)
        buffers = [view[entry.offset : entry.offset + entry.storage_bytes] for entry in self._buffers]
        return _Unpickler(self._skeleton, buffers, tensors, storages).load()


class _ViewRecipe:
    def __init__(self, view: ViewEntry, meta: PayloadMeta, *, shared: bool) -> None:
        dtype = _TORCH_DTYPES[view.dtype]
        if dtype is None:
            raise ProtocolError(f"a batch has dtype {DTYPES[view.dtype]}, which this torch does not know")
        self._dtype = dtype
        self._view = view
        self._shared = shared
        self._count = 1
        for size in view.shape:
            self._count *= size
        self._offset = meta.storages[view.storage].offset + view.storage_offset * DTYPE_BYTES[view.dtype]
        usual = self._count and not shared
        self.direct = (dtype, self._count, self._offset, view.shape) if usual else None

    def build(self, payload: Any, storages: _Storages) -> torch.Tensor:
        view = self._view
        if not self._count:
            return torch.empty_strided(view.shape, view.stride, dtype=self._dtype)
        if self._shared:
            tensor = torch.empty(0, dtype=self._dtype)
            return tensor.set_(storages.get(view.storage), view.storage_offset, view.shape, view.stride)
        return torch.frombuffer(payload, dtype=self._dtype, count=self._count, offset=self._offset).view(view.shape)


class _Storages:
    """Makes the payload's storages as torch storages, each once and when it is first asked for."""

    def __init__(self, payload: Any, entries: tuple[Any, ...]) -> None:
        self._payload = payload
        self._entries = entries
        self._made: dict[int, torch.UntypedStorage] = {}

    def get(self, index: int) -> torch.UntypedStorage:
        made = self._made.get(index)
        if made is None:
            entry = self._entries[index]
            if entry.storage_bytes:
                flat = torch.frombuffer(
                    self._payload, dtype=torch.uint8, count=entry.storage_bytes, offset=entry.offset
                )
                made = flat.untyped_storage()
            else:
                made = torch.empty(0, dtype=torch.uint8).untyped_storage()
            self._made[index] = made
        return made


class SkeletonUnpickler(pickle.Unpickler):
    """Unpickles a batch's structure, wherever its bytes are."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_sparse_tensor"):
            return _rebuilt_sparse
        return super().find_class(module, name)


class _Unpickler(SkeletonUnpickler):
    def __init__(
        self, skeleton: bytes, buffers: list[memoryview], tensors: list[torch.Tensor], storages: _Storages
    ) -> None:
        super().__init__(io.BytesIO(skeleton), buffers=buffers)
        self._tensors = tensors
        self._storages = storages

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is int:
            return self._tensors[pid]
        kind = pid[0]
        if kind == "storage":
            storage = self._storages.get(pid[1])
            if not pid[2]:
                return storage
            make: Any = torch.storage.TypedStorage
            return make(wrap_storage=storage, dtype=getattr(torch, pid[2]), _internal=True)
        return find_named(pid)


def _rebuilt_sparse(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    """Rebuilds a sparse tensor as torch does, and takes it off the list of those that the next torch.load() checks: as
    long as torch keeps it there, its slot is not released."""
    found: torch.Tensor = torch._utils._rebuild_sparse_tensor(layout, data)  # type: ignore[no-untyped-call]
    kept: list[torch.Tensor] = getattr(torch._utils, "_sparse_tensors_to_validate", [])
    kept[:] = [each for each in kept if each is not found]
    return found


def _covers_part(view: ViewEntry, meta: PayloadMeta) -> bool:
    """Returns False when the view has the usual strides and is the whole of its storage."""
    expected = 1
    for size, stride in zip(reversed(view.shape), reversed(view.stride)):
        # Where a size is 1 the stride means nothing, but a batch is to come back as it was.
        if stride != expected:
            return True
        expected *= size
    whole = meta.storages[view.storage].storage_bytes == expected * DTYPE_BYTES[view.dtype]
    return not (whole and view.storage_offset == 0) and expected != 0
