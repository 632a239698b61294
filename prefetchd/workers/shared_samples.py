"""Shares the samples of one batch between the workers that load them, where it is collated by one of them. The rules,
whose reasons are in decision 0117:

1. The memory is that of the owner's status, from SAMPLES_OFFSET on: the owner is who collates. Each row has its part.
2. Whoever loads a row holds the lock on the first byte of its part meanwhile. It ends with its process, so nobody waits
   for a dead one.
3. A part counts when its head names the owner's task; the head is written last. Of other tasks, of processes that died
   half way, and where the owner's status was cut short, there is nothing.
4. What is not there the owner loads itself.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.file_locks import reopen, try_lock, unlock, wait_lock
from prefetchd.wire.worker_status import (
    NO_WORKER_STATUS,
    SAMPLES_OFFSET,
    STACK_OFFSET,
    STATUS_WORDS_BYTES,
    WorkerStatus,
    read_worker_status,
)

PART_BYTES = 1 << 32
"""The distance between two parts; there is memory only behind what is written."""
MOST_SAMPLE_BYTES = 1 << 26
"""The most that a sample may take: all of a batch's are there beside the batch."""
_HEAD = struct.Struct("=qq")


class SharedSamples:
    """The parts of one owner's rows. `fd` is that of the owner's status; it stays the caller's."""

    def __init__(self, fd: int) -> None:
        # Locks belong to a description: each process needs one of its own.
        self._fd = reopen(fd)

    def close(self) -> None:
        """Lets everything go, locks too. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def owner(self) -> WorkerStatus:
        """Returns what the owner is at."""
        found = os.pread(self._fd, STATUS_WORDS_BYTES, 0)
        return read_worker_status(found) if len(found) == STATUS_WORDS_BYTES else NO_WORKER_STATUS

    def claim(self, row: int) -> bool:
        """Takes the row; False when another process has it."""
        return try_lock(self._fd, _part(row))

    def wait(self, row: int) -> None:
        """Takes the row, as soon as no other process has it. Blocks until then."""
        wait_lock(self._fd, _part(row))

    def release(self, row: int) -> None:
        """Gives the row up."""
        unlock(self._fd, _part(row))

    def put(self, row: int, task: int, parts: Sequence[Any]) -> None:
        """Writes the row's sample for the owner's `task`. Only for who has the row. Raises OSError."""
        at = _part(row) + _HEAD.size
        size = 0
        for each in parts:
            view = memoryview(each).cast("B")
            while view:
                written = os.pwrite(self._fd, view, at + size)
                view, size = view[written:], size + written
        kill_point("worker.sample.headless")
        os.pwrite(self._fd, _HEAD.pack(task, size), _part(row))

    def has(self, row: int, task: int) -> bool:
        """Returns True when the row's sample is there for `task`. Only for who has the row."""
        head = os.pread(self._fd, _HEAD.size, _part(row))
        return len(head) == _HEAD.size and _HEAD.unpack(head)[0] == task

    def get(self, row: int, task: int) -> bytearray | None:
        """Returns the row's sample if it is there for `task`. Only for who has the row."""
        head = os.pread(self._fd, _HEAD.size, _part(row))
        if len(head) < _HEAD.size:
            return None
        its_task, size = _HEAD.unpack(head)
        if its_task != task or not 0 <= size <= MOST_SAMPLE_BYTES:
            return None
        data = bytearray(size)
        view = memoryview(data)
        at = _part(row) + _HEAD.size
        while view:
            found = os.preadv(self._fd, [view], at)
            if not found:
                return None
            view, at = view[found:], at + found
        return data

    def clear(self) -> None:
        """Gives up the memory of all parts. Only for the owner."""
        os.ftruncate(self._fd, STACK_OFFSET)


def _part(row: int) -> int:
    return SAMPLES_OFFSET + row * PART_BYTES
