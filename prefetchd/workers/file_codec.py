"""Encodes a batch into a file of its own (wire.batch_file): tensors and arrays as they lie in memory, the rest as text.

The structure is JSON, for our own client (structure_nodes). Other readers need none: tensors have names, and texts and
numbers stand by their places.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.batch_file import CODES, FORMAT_VERSION, encode_header, file_name
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.workers.plain_tensors import is_plain_tensor
from prefetchd.workers.structure_nodes import encode_structure, nested_too_deep

WHOLE = "batch"
"""The name of a batch that is a single leaf."""

_TORCH_CODES = {getattr(torch, name): code for name, code in CODES.items() if hasattr(torch, name)}
_NUMPY_CODES = {np.dtype(name): code for name, code in CODES.items() if "float8" not in name and name != "bfloat16"}
_WRITEV_BUFFERS = 512
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class StoreError(PrefetchdError):
    """The batch cannot be written where batches go: full (`is_full`), read-only, gone. It may be tried again."""

    code = "store"

    def __init__(self, text: str, *, is_full: bool = False) -> None:
        super().__init__(text)
        self.is_full = is_full


@dataclasses.dataclass
class _Leaf:
    """One tensor or array of the file; `content` is its bytes, which `owner` keeps alive."""

    name: str
    code: str
    shape: tuple[int, ...]
    item_bytes: int
    content: memoryview
    owner: Any


class EncodedFile:
    """A batch ready to be written: `payload_bytes` long. Holds the batch's own memory."""

    def __init__(self, leaves: list[_Leaf], metadata: Mapping[str, str]) -> None:
        # The widest items first: then each lies where its items want to lie.
        leaves = sorted(leaves, key=lambda leaf: -leaf.item_bytes)
        self._header = encode_header(
            [(leaf.name, leaf.code, leaf.shape, leaf.content.nbytes) for leaf in leaves], metadata
        )
        self._parts = [memoryview(self._header), *(leaf.content for leaf in leaves)]
        self._leaves = leaves

    @property
    def payload_bytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def write(self, place: FilePlace) -> None:
        """Writes the batch to `place`. Raises StoreError; nothing is left of the file then."""
        try:
            place.check()
            # What an attempt that was given up has left: a file is never one that somebody else may have open.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.path)
            fd = os.open(place.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{place.path}: {error.strerror}", is_full=error.errno in _NO_ROOM) from None
        try:
            self._write(fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(place.path)
            text = f"{place.path}, of {self.payload_bytes} bytes: {error.strerror}"
            raise StoreError(text, is_full=error.errno in _NO_ROOM) from None
        finally:
            os.close(fd)
        kill_point("worker.file.written")

    def _write(self, fd: int) -> None:
        parts = [part for part in self._parts if part.nbytes]
        while parts:
            kill_point("worker.file.half")
            written = os.writev(fd, parts[:_WRITEV_BUFFERS])
            while written:
                if written < parts[0].nbytes:
                    parts[0] = parts[0][written:]
                    break
                written -= parts.pop(0).nbytes


@dataclasses.dataclass(frozen=True)
class FilePlace:
    """The place where a batch's file is to be made. `witness` is there as long as the directory is the one that was
    meant."""

    path: str
    witness: str

    def check(self) -> None:
        """Raises OSError when the directory is another one: a RAM disk that is not mounted any more has a directory of
        the disk below in its place."""
        os.stat(self.witness)


def encode_file(batch: Any, spec: StreamSpec, position: Position) -> EncodedFile:
    """Encodes the batch as leaves and texts. Raises UnplainError when it holds what a file cannot."""
    leaves = _Leaves()
    values: dict[str, Any] = {}
    try:
        # A leaf that stands in several places has one name, the first; texts and numbers are for readers that know no
        # structure.
        for path, value in _with_paths(batch, ""):
            if leaves.keep(path, value) is None and _is_plain(value):
                values[path] = value
    except RecursionError:
        raise nested_too_deep() from None
    structure = encode_structure(batch, leaves.name_of)
    metadata = {
        "prefetchd": str(FORMAT_VERSION),
        "stream": spec.name,
        "fingerprint": spec.fingerprint,
        "epoch": str(position[0]),
        "batch": str(position[1]),
        "values": json.dumps(values),
        "structure": json.dumps(structure, separators=(",", ":"), allow_nan=False),
        "name": file_name(position),
    }
    return EncodedFile(leaves.found, metadata)


class _Leaves:
    """The leaves of a batch by name. A leaf inside of an object has no place that can be named, and gets a number."""

    def __init__(self) -> None:
        self.found: list[_Leaf] = []
        self._names: dict[int, str] = {}

    def keep(self, path: str, value: Any) -> str | None:
        """Keeps the value if it is a leaf. Returns the leaf's name, the first place where it stands; None when it is no
        leaf."""
        name = self._names.get(id(value))
        if name is None and (leaf := _leaf(self._free(path), value)) is not None:
            name = self._names[id(value)] = leaf.name
            self.found.append(leaf)
        return name

    def name_of(self, value: Any) -> str | None:
        return self.keep(f"object.{len(self.found)}", value)

    def _free(self, path: str) -> str:
        """Returns `path`, or a name like it that is free: {1: ..., "1": ...} has two tensors at one path."""
        taken = set(self._names.values())
        return next(name for name in (path, *(f"{path}.{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def _with_paths(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields each leaf with its path, as one writes it: 0.image."""
    items: Iterator[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping) and all(isinstance(key, (str, int)) for key in value):
        items = iter(value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value)
    elif isinstance(value, (list, tuple)) and not _is_plain(value):
        items = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    if items is None:
        yield path or WHOLE, value
        return
    for key, inner in items:
        yield from _with_paths(inner, f"{path}.{key}" if path else str(key))


def _is_plain(value: Any) -> bool:
    """Returns True for what JSON can say: texts, numbers, None, and lists of them."""
    if isinstance(value, (list, tuple)):
        return not hasattr(value, "_fields") and all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or type(value) in (str, int, bool)


def _leaf(name: str, value: Any) -> _Leaf | None:
    """Returns the tensor or array as bytes one after another, or None when it is none that the format knows."""
    if type(value) is torch.Tensor:
        code = _TORCH_CODES.get(value.dtype)
        if code is None or not is_plain_tensor(value):
            return None
        dense = value.contiguous()
        content: Any = dense.view(-1).view(torch.uint8).numpy() if dense.numel() else np.empty(0, np.uint8)
        return _Leaf(name, code, tuple(value.shape), value.element_size(), memoryview(content).cast("B"), dense)
    if type(value) is np.ndarray and (code := _NUMPY_CODES.get(value.dtype)) is not None:
        array = np.ascontiguousarray(value)
        content = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
        return _Leaf(name, code, value.shape, value.itemsize, memoryview(content).cast("B"), array)
    return None
