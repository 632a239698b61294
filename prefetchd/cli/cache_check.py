"""What a sample cache holds, and whether that is what was stored."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

from prefetchd.wire.cache_directory import (
    MARK,
    MARKS,
    ROW_LOCK_OFFSET,
    SAMPLES,
    CacheDescription,
    row_digest,
)
from prefetchd.wire.cache_marks import marks_locked
from prefetchd.wire.errors import ProtocolError, UntrustedPathError
from prefetchd.wire.file_locks import try_lock, unlock
from prefetchd.wire.trusted_paths import open_below


def count_rows(directory: Path, description: CacheDescription) -> int:
    """How many samples are stored. Raises OSError."""
    return sum(mark != 0 for mark in _marks(directory, description))


def check_rows(
    directory: Path, description: CacheDescription, *, fix: bool, looked_at: Callable[[int], None] = lambda row: None
) -> tuple[list[int], list[int]]:
    """The rows that are not what their marks say; and with `fix`, those of them that have none any more: not one that
    somebody is storing just then. Tells looked_at() of each row that it comes to. Raises OSError."""
    with contextlib.ExitStack() as stack:
        maps = []
        for leaf in description.leaves:
            file = stack.enter_context(open(_open(directory, f"{SAMPLES}/{leaf.file}", os.O_RDONLY), "rb"))
            maps.append(stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
        bad = {}
        for row, mark in enumerate(_marks(directory, description)):
            if not mark:
                continue
            looked_at(row)
            parts = [
                mapping[row * leaf.row_bytes : (row + 1) * leaf.row_bytes]
                for mapping, leaf in zip(maps, description.leaves)
            ]
            if row_digest(iter(parts)) != mark:
                bad[row] = mark
    return list(bad), _forgotten(directory, bad) if fix and bad else []


def _forgotten(directory: Path, marks: dict[int, int]) -> list[int]:
    """The rows that still had these marks, and have none now."""
    found = []
    fd = _open(directory, MARKS, os.O_RDWR)
    try:
        for row, mark in marks.items():
            if try_lock(fd, ROW_LOCK_OFFSET + row):
                with marks_locked(fd) as locked:
                    if locked and os.pread(fd, MARK.size, row * MARK.size) == MARK.pack(mark):
                        os.pwrite(fd, MARK.pack(0), row * MARK.size)
                        found.append(row)
                unlock(fd, ROW_LOCK_OFFSET + row)
    finally:
        os.close(fd)
    return found


def _marks(directory: Path, description: CacheDescription) -> tuple[int, ...]:
    with open(_open(directory, MARKS, os.O_RDONLY), "rb") as file, marks_locked(file.fileno(), shared=True) as locked:
        if not locked:
            raise BlockingIOError(errno.EAGAIN, "locked by a process that has been stopped", str(directory / MARKS))
        return struct.unpack(f"<{description.rows}Q", file.read(description.rows * MARK.size))


def _open(directory: Path, name: str, flags: int) -> int:
    """A descriptor of that file of the cache. Raises ProtocolError when it is no file in it, OSError."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(fd, name, flags)
    except UntrustedPathError as error:
        raise ProtocolError(f"{directory}: {error}") from None
    finally:
        os.close(fd)
