"""A sample cache's directory: what lies where, and which samples are in it.

    PATH/FINGERPRINT/           one cache; another version of the dataset has another fingerprint
        cache.json              the description below; never changes
        marks                   8 bytes a row: 0, or the digest of the row's bytes in all leaves, one after another
        samples/                a tensordict memory-mapped directory of `rows` rows, as TensorDict.load_memmap reads it
    PATH/FINGERPRINT.new-*/     one that is being made, or that its maker has left behind
    PATH/FINGERPRINT.old-*/     one that is being removed

A cache appears under its name when all three are there. A row is written before its mark: one without a mark has
nothing that counts. Marks are written and read under locks of bytes of their file, so that whoever sees a mark sees
its row as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from prefetchd.wire.errors import ProtocolError

VERSION = 1
DESCRIPTION, MARKS, SAMPLES = "cache.json", "marks", "samples"
FINGERPRINT_LETTERS = 32

MARK = struct.Struct("<Q")
MARKS_LOCK_OFFSET = 1 << 60
MAKER_LOCK_OFFSET = MARKS_LOCK_OFFSET + 1
ROW_LOCK_OFFSET = 1 << 61
"""Whoever writes row k holds the byte at ROW_LOCK_OFFSET + k of the marks."""


@dataclasses.dataclass(frozen=True)
class LeafFile:
    """One tensor of the samples: `file` below SAMPLES has it for all rows, one after another. `row_bytes` each."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    row_bytes: int


@dataclasses.dataclass(frozen=True)
class CacheDescription:
    """`length` is the dataset's, of which the first `rows` samples are kept; `structure` tells how leaves make a
    sample (prefetchd_client.sample_cache.structure)."""

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
    """Raises FileNotFoundError when there is no cache, ProtocolError when it is none that this version reads."""
    try:
        raw = json.loads((directory / DESCRIPTION).read_text("utf-8"))
        if raw["version"] != VERSION:
            raise ProtocolError(f"{directory} has version {raw['version']}; this prefetchd reads {VERSION}")
        leaves = tuple(
            LeafFile(str(leaf["file"]), str(leaf["dtype"]), tuple(map(int, leaf["shape"])), int(leaf["row_bytes"]))
            for leaf in raw["leaves"]
        )
        length, rows = int(raw["length"]), int(raw["rows"])
        return CacheDescription(raw["fingerprint"], raw["dataset"], length, rows, leaves, raw["structure"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"{directory / DESCRIPTION} is damaged: {error!r}; remove it: prefetchd cache rm") from None


def check_sizes(directory: Path, description: CacheDescription) -> None:
    """Raises ProtocolError when a file is missing, or shorter than its rows: reading behind its end would end the
    process. Raises FileNotFoundError when there is no cache any more."""
    wanted = {f"{SAMPLES}/{leaf.file}": leaf.row_bytes * description.rows for leaf in description.leaves}
    wanted[MARKS] = MARK.size * description.rows
    remedy = f"Remove the cache: prefetchd cache rm {directory.parent} {directory.name}"
    for name, size in wanted.items():
        try:
            found = os.stat(directory / name).st_size
        except FileNotFoundError:
            os.stat(directory / DESCRIPTION)
            raise ProtocolError(f"{directory / name} is missing: somebody has removed it. {remedy}") from None
        if found < size:
            raise ProtocolError(f"{directory / name} has {found} bytes, not {size}: somebody has cut it. {remedy}")


def row_digest(parts: Iterator[Any]) -> int:
    """What a row's mark is: the digest of its bytes, never 0."""
    content = xxhash.xxh3_64()
    for part in parts:
        content.update(part)
    return content.intdigest() or 1


def caches_in(path: Path) -> list[Path]:
    """The caches below `path`, by name; nothing else that lies there."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(each for each in path.iterdir() if is_fingerprint(each.name) and (each / DESCRIPTION).is_file())
    return []


def allocated_bytes(directory: Path, description: CacheDescription) -> int:
    """What the samples take of the disk: of a file only what was written."""
    return sum(os.stat(directory / SAMPLES / leaf.file).st_blocks * 512 for leaf in description.leaves)


def is_fingerprint(name: str) -> bool:
    """Whether a cache can have this name."""
    return len(name) == FINGERPRINT_LETTERS and set(name) <= set("0123456789abcdef")
