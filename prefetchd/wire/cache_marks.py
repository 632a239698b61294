"""Locks a sample cache's marks: whoever sees a mark sees its row, as locks order what two processes see of each other's
memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from prefetchd.wire.cache_directory import MARKS_LOCK_OFFSET
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
