"""BatchFileReader reads a batch out of its file (wire.batch_file): the same structure, with tensors that look at the
mapped file.

The mapping is private: what the holder writes stays with it. The file may be unlinked meanwhile; its memory is given
back when the last tensor that looks at it is gone.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from prefetchd.wire.batch_file import (
    DESCRIPTION_LIMIT_BYTES,
    NAMES_BY_CODE,
    STREAM_FILE,
    check_version,
    decode_header,
    error_name,
    file_name,
    read_description,
)
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.stream_spec import Position
from prefetchd.wire.trusted_paths import check_file, open_directory, read_file
from prefetchd_client.batches.structures import ClassAllowList, decode_structure

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class BatchFileReader:
    """Reads the batches of one directory. Refuses batches that another user of the machine could have made. The
    directory is looked at anew at each call: another RAM disk may be mounted there meanwhile."""

    def __init__(self, directory: str, classes: Iterable[type] = ()) -> None:
        """Raises CallerError when `classes` holds no class."""
        self.directory = directory
        self._classes = ClassAllowList(classes)
        self._trusted: tuple[int, ...] = ()

    def batch(self, position: Position) -> Any:
        """Returns the batch at `position`. Raises FileNotFoundError when it is not there, ProtocolError when it is
        damaged, UntrustedPathError when it, or the directory, is not ours alone to write."""
        directory = self._open()
        try:
            fd = os.open(file_name(position), _FILE_FLAGS, dir_fd=directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ProtocolError(f"the batch file of {position} cannot be read: {error.strerror}") from None
        finally:
            os.close(directory)
        try:
            size = check_file(fd, os.path.join(self.directory, file_name(position))).st_size
            if not size:
                raise ProtocolError(f"the batch file of {position} is empty")
            memory = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        # An array, not the mapping: tensors keep it alive, and it keeps the mapping.
        return decode_batch((ctypes.c_ubyte * size).from_buffer(memory), self._classes)

    def error(self, position: Position) -> str:
        """Returns why there is no batch at `position`. Raises FileNotFoundError when no such error is recorded, and
        UntrustedPathError."""
        return self._text(error_name(position)).decode("utf-8", "replace")

    def description(self) -> dict[str, Any]:
        """Returns the daemon's description of the batches. Raises what error() raises, and ProtocolError."""
        return read_description(self._text(STREAM_FILE))

    def _text(self, name: str) -> bytes:
        directory = self._open()
        try:
            return read_file(name, DESCRIPTION_LIMIT_BYTES, dir_fd=directory)
        finally:
            os.close(directory)

    def _open(self) -> int:
        """Opens the directory, and returns the descriptor. The path to it is checked when it is another directory than
        before."""
        fd = os.open(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        found = os.fstat(fd)
        seen = (found.st_dev, found.st_ino, found.st_uid, found.st_gid, found.st_mode)
        if seen == self._trusted:
            return fd
        os.close(fd)
        fd = open_directory(
            self.directory, f"`chmod 700 {self.directory}` if it is yours, or choose another directory for the stream"
        )
        found = os.fstat(fd)
        self._trusted = (found.st_dev, found.st_ino, found.st_uid, found.st_gid, found.st_mode)
        return fd


def decode_batch(payload: Any, classes: ClassAllowList) -> Any:
    """Returns the batch in `payload`, a ctypes array of a whole file; its tensors look at that memory. Raises
    ProtocolError, and CallerError when it holds an instance of a class that is not allowed."""
    view = memoryview(payload).cast("B")
    table, metadata, begin = decode_header(view)
    check_version(metadata)
    try:
        structure = json.loads(metadata["structure"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a batch file without the batch's structure: {error}") from None
    return decode_structure(structure, _Leaves(payload, table, begin).find, classes)


class _Leaves:
    """Makes the tensors and arrays of one file, each when it is first asked for."""

    def __init__(self, payload: Any, table: dict[str, Any], begin: int) -> None:
        self._payload = payload
        self._table = table
        self._begin = begin
        self._made: dict[tuple[str, str], Any] = {}

    def find(self, kind: str, name: str) -> Any:
        """Returns the tensor or array of that kind and name. The same object in two places of the batch stays one."""
        made = self._made.get((kind, name))
        if made is None:
            made = self._made[kind, name] = self._tensor(name) if kind == "tensor" else self._array(name)
        return made

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
