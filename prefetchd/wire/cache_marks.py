"""Locks a sample cache's marks: whoever sees a mark sees its row, as locks order what two processes see of each other's
memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from prefetchd.wire.cache_directory import MARK, MARKS_LOCK_OFFSET
from prefetchd.wire.file_locks import try_lock, unlock

LOCK_ATTEMPTS = 300
YIELDS = 100
LOCK_AGAIN_S = 0.0005


@contextlib.contextmanager
def marks_locked(fd: int, *, shared: bool = False) -> Iterator[bool]:
    """Locks the marks behind `fd` for the block: `shared` for reading, for which a read-only `fd` will do. Gives False,
    and locks nothing, after LOCK_ATTEMPTS: the holder may have been stopped."""
    locked = False
    for attempt in range(LOCK_ATTEMPTS):
        locked = try_lock(fd, MARKS_LOCK_OFFSET, shared=shared)
        if locked:
            break
        # Its holder is at one system call; or it has lost its CPU there.
        os.sched_yield() if attempt < YIELDS else time.sleep(LOCK_AGAIN_S)
    try:
        yield locked
    finally:
        if locked:
            unlock(fd, MARKS_LOCK_OFFSET)


def is_damage_noted(marks_bytes: int, rows: int) -> bool:
    """True when marks of this size say that a process has found a damaged row. The size alone says so: readers look at
    it anyway, before each read."""
    return marks_bytes > MARK.size * rows


def note_damage(fd: int, rows: int) -> bool:
    """Notes for all processes, and for later ones, that a row differs from its mark. False when the marks cannot be
    written: on a full or read-only file system, or with a read-only `fd`."""
    try:
        return os.pwrite(fd, MARK.pack(1), MARK.size * rows) == MARK.size
    except OSError:
        return False


def forget_damage(fd: int, rows: int) -> None:
    """Removes the note, after all rows were compared and the damaged ones forgotten. Raises OSError."""
    os.ftruncate(fd, MARK.size * rows)
