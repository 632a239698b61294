"""Describes a sample cache's directory: what lies where, and which samples are in it.

    PATH/FINGERPRINT/           one cache; another version of the dataset has another fingerprint
        cache.json              the description below; never changes
        marks                   8 bytes a row: 0, or the digest of the row's bytes in all leaves, one after another;
                                8 bytes more once a process has found a row that differs from its mark
        samples/                a tensordict memory-mapped directory of `rows` rows, as TensorDict.load_memmap reads it
    PATH/FINGERPRINT.new-*/     one that is being made, or that its maker has left behind
    PATH/FINGERPRINT.old-*/     one that is being removed

All that cache.json says is looked at before anything is mapped or written to: it may be somebody else's.

A cache appears under its name when all three are there. A row is written before its mark: one without a mark has
nothing that counts. Marks are written and read under locks of bytes of their file, so that whoever sees a mark sees its
row as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from prefetchd.wire.errors import ProtocolError, UntrustedPathError
from prefetchd.wire.slot_layout import DTYPE_BYTES, DTYPES
from prefetchd.wire.trusted_paths import open_below

VERSION = 1
DESCRIPTION_LIMIT_BYTES = 16 << 20
SUFFIX = ".memmap"
DESCRIPTION, MARKS, SAMPLES = "cache.json", "marks", "samples"
FINGERPRINT_LETTERS = 32
LENGTH_LIMIT = 1 << 62
FILE_LIMIT_BYTES = 1 << 60

MARK = struct.Struct("<Q")
MARKS_LOCK_OFFSET = 1 << 60
MAKER_LOCK_OFFSET = MARKS_LOCK_OFFSET + 1
ROW_LOCK_OFFSET = 1 << 61
"""The first of the bytes that writers of rows lock: whoever writes row k holds the byte at ROW_LOCK_OFFSET + k of the
marks."""


@dataclasses.dataclass(frozen=True)
class LeafFile:
    """One tensor of the samples. `file` below SAMPLES has it for all rows, one after another, `row_bytes` each."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int


@dataclasses.dataclass(frozen=True)
class CacheDescription:
    """The content of cache.json. `length` is the dataset's, of which the first `rows` samples are kept; `structure`
    tells how leaves make a sample (prefetchd_client.sample_cache.structure)."""

    fingerprint: str
    dataset: str
    length: int
    rows: int
    leaves: tuple[LeafFile, ...]
    structure: Any

    @property
    def sample_bytes(self) -> int:
        return sum(leaf.row_bytes for leaf in self.leaves)


def encode_description(description: CacheDescription) -> str:
    return json.dumps({"version": VERSION, **dataclasses.asdict(description)}, indent=1)


def read_description(directory: Path) -> CacheDescription:
    """Returns the description of the cache in `directory`. Raises FileNotFoundError when there is no cache,
    ProtocolError when it is none that this version reads."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_description_at(fd, directory)
    finally:
        os.close(fd)


def read_description_at(directory: int, path: Path) -> CacheDescription:
    """Returns the description of the cache in the directory behind a descriptor, which is at `path`. Raises as
    read_description()."""
    try:
        with open(open_below(directory, DESCRIPTION, os.O_RDONLY), "rb") as file:
            text = file.read(DESCRIPTION_LIMIT_BYTES + 1)
        if len(text) > DESCRIPTION_LIMIT_BYTES:
            raise ValueError(f"longer than {DESCRIPTION_LIMIT_BYTES} bytes")
        raw = json.loads(text)
        if raw["version"] != VERSION:
            raise ProtocolError(f"{path} has version {raw['version']!r:.40}; this prefetchd reads {VERSION}")
        leaves = tuple(
            LeafFile(leaf["file"], leaf["dtype"], tuple(leaf["shape"]), leaf["row_bytes"]) for leaf in raw["leaves"]
        )
        found = CacheDescription(
            raw["fingerprint"], raw["dataset"], raw["length"], raw["rows"], leaves, raw["structure"]
        )
        _check(found, path.name)
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UntrustedPathError) as error:
        why = str(error) if isinstance(error, ValueError) else repr(error)
        raise ProtocolError(f"{path / DESCRIPTION} is damaged: {why}; remove it: prefetchd cache rm") from None
    except OSError as error:
        # A directory or a link in the place of the file: it is damaged, and not absent.
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise ProtocolError(f"{path / DESCRIPTION} is a symbolic link; remove it: prefetchd cache rm") from None


def _check(found: CacheDescription, name: str) -> None:
    """Raises ValueError unless the description is of files that can be, and can only lie in the cache's directory."""
    if found.fingerprint != name.partition(".")[0]:
        raise ValueError(f"it is of {found.fingerprint!r:.80}, and lies in {name}")
    if not isinstance(found.dataset, str):
        raise ValueError(f"a dataset called {found.dataset!r:.80}")
    if not (type(found.rows) is type(found.length) is int and 1 <= found.rows <= found.length <= LENGTH_LIMIT):
        raise ValueError(
            f"{found.rows!r:.40} rows of {found.length!r:.40} samples; allowed: 1 or more, and no more rows"
        )
    if not found.leaves or len({leaf.file for leaf in found.leaves}) != len(found.leaves):
        raise ValueError("no leaves, or two in one file")
    for leaf in found.leaves:
        _check_leaf(leaf, found.rows)


def _check_leaf(leaf: LeafFile, rows: int) -> None:
    *above, name = leaf.file.split("/")
    if not name.endswith(SUFFIX) or not all(map(_is_plain_name, (*above, name.removesuffix(SUFFIX)))):
        raise ValueError(f"a file {leaf.file!r:.200}; allowed: a relative path that ends in {SUFFIX}")
    if leaf.dtype not in DTYPES:
        raise ValueError(f"{leaf.file}: a dtype {leaf.dtype!r:.40}")
    if not all(type(size) is int and size >= 1 for size in leaf.shape):
        raise ValueError(f"{leaf.file}: a shape {leaf.shape!r:.80}; allowed: sizes from 1 on")
    wanted = math.prod(leaf.shape) * DTYPE_BYTES[DTYPES.index(leaf.dtype)]
    if type(leaf.row_bytes) is not int or leaf.row_bytes != wanted:
        raise ValueError(
            f"{leaf.file}: rows of {leaf.row_bytes!r:.40} bytes; {leaf.dtype}{leaf.shape!r:.80} is {wanted}"
        )
    if wanted * rows > FILE_LIMIT_BYTES:
        raise ValueError(f"{leaf.file}: {rows} rows of {wanted} bytes; allowed: {FILE_LIMIT_BYTES} in all")


def _is_plain_name(name: str) -> bool:
    return bool(name) and not name.startswith((".", "_")) and "\0" not in name


def check_sizes(directory: Path, description: CacheDescription) -> None:
    """Raises ProtocolError when a file is missing, or shorter than its rows: reading beyond its end would end the
    process. Raises FileNotFoundError when there is no cache any more."""
    wanted = {f"{SAMPLES}/{leaf.file}": leaf.row_bytes * description.rows for leaf in description.leaves}
    wanted[MARKS] = MARK.size * description.rows
    remedy = f"Remove the cache: prefetchd cache rm {directory.parent} {directory.name}"
    for name, size in wanted.items():
        try:
            found = os.lstat(directory / name).st_size
        except FileNotFoundError:
            os.stat(directory / DESCRIPTION)
            raise ProtocolError(f"{directory / name} is missing: somebody has removed it. {remedy}") from None
        if found < size:
            raise ProtocolError(f"{directory / name} has {found} bytes, not {size}: somebody has cut it. {remedy}")


def row_digest(parts: Iterator[Any]) -> int:
    """Computes a row's mark: the digest of its bytes, never 0."""
    content = xxhash.xxh3_64()
    for part in parts:
        content.update(part)
    return content.intdigest() or 1


def caches_in(path: Path) -> list[Path]:
    """Lists the caches below `path`, by name, and nothing else that lies there."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(each for each in path.iterdir() if is_fingerprint(each.name) and (each / DESCRIPTION).is_file())
    return []


def allocated_bytes(directory: Path, description: CacheDescription) -> int:
    """Returns the bytes that the samples take of the disk: of a sparse file only what was written."""
    return sum(os.stat(directory / SAMPLES / leaf.file).st_blocks * 512 for leaf in description.leaves)


def is_fingerprint(name: str) -> bool:
    """Returns True when a cache can have this name."""
    return len(name) == FINGERPRINT_LETTERS and set(name) <= set("0123456789abcdef")
