"""Counts what a sample cache holds, and checks that it is what was stored."""

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
from prefetchd.wire.cache_marks import forget_damage, is_damage_noted, marks_locked
from prefetchd.wire.errors import ProtocolError, UntrustedPathError
from prefetchd.wire.file_locks import try_lock, unlock
from prefetchd.wire.trusted_paths import open_below


def count_rows(directory: Path, description: CacheDescription) -> int:
    """Counts the samples that are stored. Raises OSError."""
    return sum(mark != 0 for mark in _marks(directory, description))


def check_rows(
    directory: Path, description: CacheDescription, *, fix: bool, looked_at: Callable[[int], None] = lambda row: None
) -> tuple[list[int], list[int]]:
    """Compares all rows with their marks. Returns the rows that differ; and with `fix`, those of them whose marks were
    cleared: not a row that somebody is storing just then. With `fix` also removes the note that damage was found, once
    all marks of damaged rows are cleared. Calls looked_at() for each row that it comes to. Raises OSError."""
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
                # With the mark as it was read: whoever clears it looks whether it still is that one.
                bad[row] = mark
    forgotten = _forgotten(directory, bad) if fix and bad else []
    if fix and len(forgotten) == len(bad):
        _forget_damage(directory, description.rows)
    return list(bad), forgotten


def _forget_damage(directory: Path, rows: int) -> None:
    if is_damage_noted((directory / MARKS).stat().st_size, rows):
        fd = _open(directory, MARKS, os.O_RDWR)
        try:
            forget_damage(fd, rows)
        finally:
            os.close(fd)


def _forgotten(directory: Path, marks: dict[int, int]) -> list[int]:
    """Clears the marks of these rows, where they still are as given. Returns the rows whose marks were cleared."""
    found = []
    fd = _open(directory, MARKS, os.O_RDWR)
    try:
        for row, mark in marks.items():
            # Whoever stores a row holds its byte, and the mark may be another one since it was read.
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
    """Opens that file of the cache. Raises ProtocolError when it is no file in it, OSError."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(fd, name, flags)
    except UntrustedPathError as error:
        raise ProtocolError(f"{directory}: {error}") from None
    finally:
        os.close(fd)
