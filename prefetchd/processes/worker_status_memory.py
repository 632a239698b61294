"""Maps the memory that a worker's status lies in: the worker's end, which writes it, and the daemon's, which reads
it."""

from __future__ import annotations

import dataclasses
import mmap
import os
import time

from prefetchd.wire.worker_status import (
    ATTEMPT,
    IDLE,
    INDEX,
    NO_WORKER_STATUS,
    PHASE,
    ROW,
    SINCE,
    STACK_OFFSET,
    STARTING,
    STATUS_WORDS,
    STATUS_WORDS_BYTES,
    TASK,
    WorkerStatus,
    read_worker_status,
)

_now_ns = time.monotonic_ns


class WorkerStatusWriter:
    """The worker's end. Without `memory` it keeps the status to itself, for backends without processes.

    `words` are for the loop over samples, which does what load() does: a call would be a third of the price.
    """

    def __init__(self, memory: bytearray | mmap.mmap | None = None) -> None:
        self._memory = bytearray(STATUS_WORDS_BYTES) if memory is None else memory
        self.words = memoryview(self._memory)[:STATUS_WORDS_BYTES].cast("q")
        self.phase(STARTING)

    def begin(self, task: int) -> None:
        """Records that the worker begins a task."""
        words = self.words
        # The task last: a row is never read as one of a task that it does not belong to.
        words[PHASE] = IDLE
        words[ROW] = words[INDEX] = -1
        words[ATTEMPT] = 0
        words[SINCE] = _now_ns()
        words[TASK] = task

    def phase(self, phase: int) -> None:
        """Records that something begins which concerns no single row."""
        words = self.words
        words[ROW] = words[INDEX] = -1
        words[SINCE] = _now_ns()
        words[PHASE] = phase

    def load(self, row: int, index: int) -> None:
        """Records that the dataset is asked for a row's sample; after phase(LOADING)."""
        words = self.words
        words[ROW] = row
        words[INDEX] = index
        words[SINCE] = _now_ns()

    def attempt(self, attempt: int, index: int) -> None:
        """Records that the dataset is asked for another sample in place of the row's own; 0 and the own index when that
        is over."""
        words = self.words
        words[ATTEMPT] = attempt
        words[INDEX] = index
        words[SINCE] = _now_ns()

    def read(self) -> WorkerStatus:
        return read_worker_status(memoryview(self._memory))


def map_worker_status(fd: int) -> WorkerStatusWriter:
    """Maps the status behind `fd`, which stays the caller's."""
    return WorkerStatusWriter(mmap.mmap(fd, STATUS_WORDS_BYTES))


class WorkerStatusFile:
    """The daemon's end: a memfd for one child process."""

    def __init__(self) -> None:
        """Makes the memfd. Raises OSError."""
        self.fd = os.memfd_create("prefetchd-note", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, STACK_OFFSET)
        os.pwrite(self.fd, STATUS_WORDS.pack(*dataclasses.astuple(NO_WORKER_STATUS)), 0)

    def read(self) -> WorkerStatus:
        """Reads the status; NO_WORKER_STATUS when the worker has made the memfd shorter."""
        found = os.pread(self.fd, STATUS_WORDS_BYTES, 0)
        return read_worker_status(found) if len(found) == STATUS_WORDS_BYTES else NO_WORKER_STATUS

    def close(self) -> None:
        """Closes the memfd. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
