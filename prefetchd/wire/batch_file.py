"""Defines a batch as a file that any program can read: safetensors, one batch a file, named by epoch and batch.

    offset 0    +----------------------------------------------------------------+
                | u64: bytes of the header                                       |
                | header, JSON: names, dtypes, shapes, offsets; __metadata__     |
                |   padded with spaces to a multiple of 64                       |
                +----------------------------------------------------------------+
                | tensors, one after another, the widest items first             |
                +----------------------------------------------------------------+

A tensor is named by its place in the batch: "0" and "1" for (images, labels), "image" for {"image": ...}, "0.left" for
what lies deeper, "batch" when the batch is nothing but a tensor. What is no tensor stands in the metadata, as do the
stream, the position, and for our own client the batch's structure, as JSON (prefetchd.workers.structure_nodes): nothing
in a file is code. Beside the files, STREAM_FILE describes them.

Format: https://github.com/huggingface/safetensors#format. Pure.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.slot_layout import DTYPE_BYTES, DTYPES
from prefetchd.wire.stream_spec import Position, StreamSpec

FORMAT_VERSION = 2
"""The version of the files that are written and read; version 1 had the structure as a pickle. Its files are made anew:
they are never read."""
STRUCTURE_DEPTH = 100
DESCRIPTION_LIMIT_BYTES = 1 << 20
STREAM_FILE = "stream.json"
LOCK_FILE = ".prefetchd.lock"
SUFFIX = ".safetensors"
NAME = "epoch{epoch:06}-batch{batch:08}" + SUFFIX
EPOCHS_LIMIT = 1_000_000
"""How many epochs' files are in order when they are sorted by name."""
TEMPORARY_SUFFIX = ".tmp"
ERROR_SUFFIX = ".error"
ALIGNMENT = 64
HEADER_LENGTH = struct.Struct("<Q")
HEADER_LIMIT_BYTES = 100_000_000
DESCRIPTION_LIMIT_BYTES = 64 * 1024
ERROR_LIMIT_BYTES = 64 * 1024
"""The most that is read of STREAM_FILE, and of an error's file."""

# By our own names; complex numbers but complex64 have none.
CODES = {
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "bool": "BOOL",
    "complex64": "C64",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
assert set(CODES) <= set(DTYPES)
NAMES_BY_CODE = {code: name for name, code in CODES.items()}

_TEMPORARY = re.compile(r"\.(epoch.*\.safetensors)\.[0-9a-f]+\.tmp")
_HALF_REPLACED = re.compile(r"(stream\.json|epoch\d+-batch\d+\.error)\.[0-9a-f]{16}\.tmp")
_NAME = re.compile(r"epoch(\d{6,})-batch(\d{8,})\.safetensors")


def file_name(position: Position) -> str:
    """Returns the file's name. Sorted by name, files are in the order of their positions: up to epoch 999,999 and batch
    99,999,999."""
    return NAME.format(epoch=position[0], batch=position[1])


def error_name(position: Position) -> str:
    """Returns the name of the file that stands in the place of a batch that cannot be made: its error, as text."""
    return file_name(position).removesuffix(SUFFIX) + ERROR_SUFFIX


def temporary_name(position: Position, ring: int) -> str:
    """Returns the name that the file has while it is written: nobody's pattern for batches matches it. `ring` is the
    header's created_ns: a dead daemon's worker that still writes does so under another name."""
    return f".{file_name(position)}.{ring:x}{TEMPORARY_SUFFIX}"


def position_of(name: str) -> Position | None:
    """Returns the position in a file's name, or None when it is not one of ours."""
    found = _NAME.fullmatch(name)
    position = (int(found[1]), int(found[2])) if found is not None else None
    return position if position is not None and file_name(position) == name else None


def failed_position_of(name: str) -> Position | None:
    """Returns the position in the name of an error's file, or None when it is none."""
    return position_of(name.removesuffix(ERROR_SUFFIX) + SUFFIX) if name.endswith(ERROR_SUFFIX) else None


def is_temporary(name: str) -> bool:
    found = _TEMPORARY.fullmatch(name)
    return found is not None and position_of(found[1]) is not None


def is_half_replaced(name: str) -> bool:
    """Returns True for what wire.trusted_paths.replace_file leaves of STREAM_FILE or an error's file when it is
    killed."""
    return _HALF_REPLACED.fullmatch(name) is not None


def encode_header(tensors: Sequence[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """Returns all that stands before the tensors: rows of name, code, shape and bytes, in the order of the file."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, code, shape, size in tensors:
        table[name] = {"dtype": code, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    padded = text.ljust(-(-(len(text) + HEADER_LENGTH.size) // ALIGNMENT) * ALIGNMENT - HEADER_LENGTH.size)
    return HEADER_LENGTH.pack(len(padded)) + padded


def decode_header(
    data: bytes | memoryview, file_bytes: int | None = None
) -> tuple[dict[str, Any], dict[str, str], int]:
    """Returns (tensors by name, metadata, where the tensors' bytes begin) of a whole file; or of its first bytes, when
    it has `file_bytes`. Raises ProtocolError."""
    file_bytes = len(data) if file_bytes is None else file_bytes
    try:
        (length,) = HEADER_LENGTH.unpack_from(data)
        if length > min(HEADER_LIMIT_BYTES, len(data) - HEADER_LENGTH.size):
            raise ProtocolError(f"a batch file of which {len(data)} bytes are read tells of a header of {length}")
        begin = HEADER_LENGTH.size + length
        table = json.loads(bytes(data[HEADER_LENGTH.size : begin]).decode("utf-8", "surrogatepass"))
        metadata = table.pop("__metadata__", {})
        for entry in table.values():
            _check_entry(entry, file_bytes - begin)
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ProtocolError("a batch file's metadata is no table of texts")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"a batch file is damaged: {error}") from None
    return table, metadata, begin


def check_version(metadata: Mapping[str, str]) -> None:
    """Raises ProtocolError when a file with that metadata has its structure as another version has it."""
    found = metadata.get("prefetchd")
    if found != str(FORMAT_VERSION):
        raise ProtocolError(
            f"a batch file of format {found!r:.40}; this prefetchd reads {FORMAT_VERSION}. A daemon of this version "
            "makes it anew: restart the daemon, or remove the file"
        )


def _check_entry(entry: dict[str, Any], data_bytes: int) -> None:
    """Raises ProtocolError unless the entry's bytes are within the file, and are just as many as its shape takes."""
    low, high = entry["data_offsets"]
    shape, code = entry["shape"], entry["dtype"]
    if not all(type(each) is int and each >= 0 for each in (low, high, *shape)):
        raise ProtocolError("a batch file's tensor has a size that is no number from 0 on")
    if not low <= high <= data_bytes:
        raise ProtocolError("a batch file's tensor ends beyond it")
    name = NAMES_BY_CODE.get(code)
    if name is not None and math.prod(shape) * DTYPE_BYTES[DTYPES.index(name)] != high - low:
        raise ProtocolError(f"a batch file's tensor of {shape} {code} has {high - low} bytes")


def describe_stream(spec: StreamSpec, batches_an_epoch: int | None, bound_bytes: int, place_bytes: int) -> bytes:
    """Returns the content of STREAM_FILE: `bound_bytes` is never passed by all files together, `place_bytes` is what
    one is charged at least."""
    described = {
        "format": FORMAT_VERSION,
        "stream": spec.name,
        "fingerprint": spec.fingerprint,
        "samples": spec.length,
        "batch_size": spec.batch_size,
        "batches_an_epoch": batches_an_epoch,
        "epochs": spec.epochs or None,
        "names": NAME,
        "seed": spec.seed,
        "order": spec.order,
        "rank": spec.rank,
        "world_size": spec.world_size,
        "bound_bytes": bound_bytes,
        "place_bytes": place_bytes,
    }
    return (json.dumps(described, indent=2) + "\n").encode()


def read_description(text: bytes) -> dict[str, Any]:
    """Returns what STREAM_FILE says. Raises ProtocolError when it is none of this format."""
    try:
        found = json.loads(text)
        version = found["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ProtocolError(f"{STREAM_FILE} is damaged: {error}") from None
    if version != FORMAT_VERSION:
        raise ProtocolError(f"{STREAM_FILE} has format {version}; this prefetchd reads {FORMAT_VERSION}")
    return dict(found)
