"""Maps the memory that a worker's status lies in, and writes it: the worker's end. The daemon's end is
supervisor.worker_status_file."""

from __future__ import annotations

import mmap
import time

from prefetchd.wire.worker_status import (
    ATTEMPT,
    DAMAGE,
    IDLE,
    INDEX,
    PHASE,
    ROW,
    SINCE,
    STARTING,
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

    def damage_found(self) -> None:
        """Records that a sample cache which this process reads has damaged samples; for good."""
        self.words[DAMAGE] = 1

    def read(self) -> WorkerStatus:
        return read_worker_status(memoryview(self._memory))


def map_worker_status(fd: int) -> WorkerStatusWriter:
    """Maps the status behind `fd`, which stays the caller's."""
    return WorkerStatusWriter(mmap.mmap(fd, STATUS_WORDS_BYTES))
