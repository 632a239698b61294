"""A batch into a file of its own (wire.batch_file): tensors and arrays as they lie in memory, the rest as text.

The structure is pickled for our own client, with a persistent id in the place of each tensor; other readers need no
pickle: tensors have names, and texts and numbers stand by their places as JSON.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.batch_file import CODES, encode_header, file_name
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.workers.class_names import ClassNamingPickler

WHOLE = "batch"
"""The place of a batch that is a single leaf."""

_TORCH_CODES = {getattr(torch, name): code for name, code in CODES.items() if hasattr(torch, name)}
_NUMPY_CODES = {np.dtype(name): code for name, code in CODES.items() if "float8" not in name and name != "bfloat16"}
_WRITEV_BUFFERS = 512


class StoreError(PrefetchdError):
    """The batch cannot be written where batches go: full, read-only, gone. It may be tried again."""

    code = "store"


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
        """Raises StoreError; nothing is left of the file then."""
        try:
            place.check()
            fd = os.open(place.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{place.path}: {error.strerror}") from None
        try:
            self._write(fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(place.path)
            raise StoreError(f"{place.path}, of {self.payload_bytes} bytes: {error.strerror}") from None
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
    """Where a batch's file is to be made. `witness` is there as long as the directory is the one that was meant."""

    path: str
    witness: str

    def check(self) -> None:
        """Raises OSError when the directory is another one: a RAM disk that is not mounted any more has a directory of
        the disk below in its place."""
        os.stat(self.witness)


def encode_file(batch: Any, spec: StreamSpec, position: Position) -> EncodedFile:
    """The batch as leaves and texts. Raises whatever pickling it raises."""
    names: dict[int, str] = {}
    leaves: list[_Leaf] = []
    values: dict[str, Any] = {}
    for place, value in _places(batch, ""):
        if (leaf := _leaf(place, value)) is not None:
            if id(value) not in names:
                names[id(value)] = place
                leaves.append(leaf)
        elif _is_plain(value):
            values[place] = value
    skeleton = io.BytesIO()
    _FilePickler(skeleton, names, leaves).dump(batch)
    metadata = {
        "prefetchd": "1",
        "stream": spec.name,
        "fingerprint": spec.fingerprint,
        "epoch": str(position[0]),
        "batch": str(position[1]),
        "values": json.dumps(values),
        "skeleton": base64.b64encode(skeleton.getvalue()).decode("ascii"),
        "name": file_name(position),
    }
    return EncodedFile(leaves, metadata)


class _FilePickler(ClassNamingPickler):
    """Leaves a name where a tensor was. What has no place that can be named, inside of objects, gets a number."""

    def __init__(self, target: io.BytesIO, names: dict[int, str], leaves: list[_Leaf]) -> None:
        super().__init__(target, 5)
        self._names = names
        self._leaves = leaves

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is torch.Tensor or kind is np.ndarray:
            name = self._names.get(id(obj))
            if name is None and (leaf := _leaf(f"object.{len(self._leaves)}", obj)) is not None:
                name = self._names[id(obj)] = leaf.name
                self._leaves.append(leaf)
            if name is not None:
                return ("tensor" if kind is torch.Tensor else "array", name)
        return super().persistent_id(obj)


def _places(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Each leaf with its place, as one writes it: 0.image."""
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
        yield place or WHOLE, value
        return
    for key, inner in items:
        yield from _places(inner, f"{place}.{key}" if place else str(key))


def _is_plain(value: Any) -> bool:
    """True for what JSON can say: texts, numbers, None, and lists of them."""
    if isinstance(value, (list, tuple)):
        return not hasattr(value, "_fields") and all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or type(value) in (str, int, bool)


def _leaf(name: str, value: Any) -> _Leaf | None:
    """The tensor or array as bytes one after another, or None when it is none that the format knows."""
    if type(value) is torch.Tensor:
        code = _TORCH_CODES.get(value.dtype)
        plain = value.layout is torch.strided and value.is_cpu and not value.is_nested and not value.requires_grad
        if code is None or not plain or value.is_conj() or value.is_neg() or value.__dict__:
            return None
        dense = value.contiguous()
        content: Any = dense.view(-1).view(torch.uint8).numpy() if dense.numel() else np.empty(0, np.uint8)
        return _Leaf(name, code, tuple(value.shape), value.element_size(), memoryview(content).cast("B"), dense)
    if type(value) is np.ndarray and (code := _NUMPY_CODES.get(value.dtype)) is not None:
        array = np.ascontiguousarray(value)
        content = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
        return _Leaf(name, code, value.shape, value.itemsize, memoryview(content).cast("B"), array)
    return None
