"""A batch out of its file (wire.batch_file): the same structure, with tensors that look at the mapped file.

The mapping is private: what the holder writes stays with it. The file may be unlinked meanwhile; its memory is given
back when the last tensor that looks at it is gone.
"""

from __future__ import annotations

import base64
import ctypes
import io
import mmap
import os
from typing import Any

import numpy as np
import torch

from prefetchd.wire.batch_file import NAMES_BY_CODE, decode_header, file_name
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.regular_files import open_regular
from prefetchd.wire.stream_spec import Position
from prefetchd_client.batches.class_lookup import KINDS, find_named
from prefetchd_client.batches.tensors import SkeletonUnpickler


def read_batch(directory: str, position: Position) -> Any:
    """The batch at `position`. Raises FileNotFoundError when it is not there, ProtocolError when it is damaged, or is
    no file that can be read."""
    try:
        fd = open_regular(os.path.join(directory, file_name(position)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ProtocolError(f"the batch file of {position} cannot be read: {error.strerror}") from None
    try:
        size = os.fstat(fd).st_size
        if not size:
            raise ProtocolError(f"the batch file of {position} is empty")
        memory = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    # An array, not the mapping: tensors keep it alive, and it keeps the mapping.
    return decode_batch((ctypes.c_ubyte * size).from_buffer(memory))


def decode_batch(payload: Any) -> Any:
    """The batch in `payload`, a ctypes array of a whole file, looking at its memory. Raises ProtocolError."""
    view = memoryview(payload).cast("B")
    table, metadata, begin = decode_header(view)
    try:
        skeleton = base64.b64decode(metadata["skeleton"])
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"a batch file without the batch's structure: {error}") from None
    return _Unpickler(skeleton, payload, table, begin).load()


class _Unpickler(SkeletonUnpickler):
    def __init__(self, skeleton: bytes, payload: Any, table: dict[str, Any], begin: int) -> None:
        super().__init__(io.BytesIO(skeleton))
        self._payload = payload
        self._table = table
        self._begin = begin
        self._made: dict[str, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] in KINDS:
            return find_named(pid)
        kind, name = pid
        if kind not in ("tensor", "array"):
            raise ProtocolError(f"a batch file with a persistent id of kind {kind!r}")
        # The same object in two places of the batch stays one.
        if name not in self._made:
            self._made[name] = self._tensor(name) if kind == "tensor" else self._array(name)
        return self._made[name]

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        try:
            entry = self._table[name]
            low, high = entry["data_offsets"]
            return NAMES_BY_CODE[entry["dtype"]], tuple(entry["shape"]), self._begin + low, high - low
        except KeyError as error:
            raise ProtocolError(f"a batch file lacks {error}, which its structure has") from None

    def _tensor(self, name: str) -> torch.Tensor:
        dtype, shape, offset, size = self._entry(name)
        kind = getattr(torch, dtype)
        if not size:
            return torch.empty(shape, dtype=kind)
        flat = torch.frombuffer(self._payload, dtype=kind, count=size // kind.itemsize, offset=offset)
        return flat.view(shape)

    def _array(self, name: str) -> Any:
        dtype, shape, offset, size = self._entry(name)
        kind = np.dtype(dtype)
        if not size:
            return np.empty(shape, kind)
        return np.frombuffer(self._payload, kind, size // kind.itemsize, offset).reshape(shape)
