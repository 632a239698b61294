"""WrittenPages tells whether memory of this process was written to since it was forked, without a look at what it
holds.

After a fork both processes share each page until one of them writes to it; then that one has a page of its own, and the
kernel says so: bit 56 of the page's entry in /proc/self/pagemap, "page exclusively mapped"
(Documentation/admin-guide/mm/pagemap.rst). A later fork shares the page again, and hides that it was written to: so
right before each, which may be anybody's, it is noted what was.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 8
# Mapped by this process alone; a page of a file or of shared memory; swapped out.
_TELLING = np.uint64(1 << 56 | 1 << 61 | 1 << 62)
_ENTRIES_AT_ONCE = 1 << 16

Block: TypeAlias = tuple[int, int]
"""(address, bytes) of a run of memory."""


class WrittenPages:
    """Watches blocks of memory since this process was forked last, which is when this object is made. `blocks`, a
    method, returns all blocks that will be asked about, so that they can be looked at before the next fork."""

    def __init__(self, blocks: Callable[[], Iterable[Block]]) -> None:
        # Weakly: whoever has this is often what tells them.
        self._blocks = weakref.WeakMethod(blocks)
        self._written: set[Block] = set()
        _stats.add(self)

    def may_be_written(self, block: Block) -> bool:
        """Returns False when nobody has written to the block since that fork. A write to memory beside it, on its first
        or last page, may be taken for one to it."""
        return block in self._written or _has_own_page(block)

    def note(self) -> None:
        """Notes which blocks were written to, as this process is about to be forked: its pages will be shared again."""
        blocks = self._blocks()
        self._written |= {block for block in (blocks() if blocks is not None else ()) if self.may_be_written(block)}


_stats: weakref.WeakSet[WrittenPages] = weakref.WeakSet()


def _before_fork() -> None:
    for each in list(_stats):
        each.note()


# Of os.fork(), and so of multiprocessing; subprocess forks in a way that copies no page.
os.register_at_fork(before=_before_fork)


def _has_own_page(block: Block) -> bool:
    """Returns True when some page of the block is this process's alone, and also when the kernel does not tell."""
    address, nbytes = block
    first, end = address // PAGE_BYTES, -(-(address + nbytes) // PAGE_BYTES)
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        for at in range(first, end, _ENTRIES_AT_ONCE):
            wanted = min(_ENTRIES_AT_ONCE, end - at) * _ENTRY_BYTES
            data = os.pread(fd, wanted, at * _ENTRY_BYTES)
            if len(data) != wanted:
                return True
            entries = np.frombuffer(data, np.uint64)
            # What is not there was touched by nobody, unless it was swapped out: then nothing is known of it.
            if ((entries & _TELLING) != 0).any():
                return True
        return False
    finally:
        os.close(fd)
