"""A worker's note: what it is at, in memory that the daemon reads, so that it can be told when the worker is stuck or
dead.

    offset   0  task       number of the task that it has in hand or had last; 0: none yet
             8  phase      one of the phases below
            16  row        row within the batch, or -1: none, or all at once
            24  index      what the dataset is asked for, or -1
            32  attempt    0: the row's own sample; else the number of the sample that substitutes for it
            40  since_ns   monotonic clock when the row or the phase began
            48  reserved
            64  end; from STACK_OFFSET on stacks are written (stack_dumps)

Words of 64 bits in the machine's own order, in a memfd that the daemon makes and hands over when it starts the worker.
One writer, the worker. Nothing waits for a note and nothing is decided by a living worker's: one that is read while it
changes may mix two rows. A dead worker's is final.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import time

STARTING, IDLE, LOADING, COLLATING, WRITING, DIGESTING, SAMPLING, ITERATING = range(8)
PHASES = ("starting", "idle", "loading", "collating", "writing", "digesting", "sampling", "iterating")

ALL_AT_ONCE = -1
"""The row of what is about no single one, such as __getitems__."""

NOTE = struct.Struct("=6q16x")
NOTE_BYTES = NOTE.size
STACK_OFFSET = 4096

TASK, PHASE, ROW, INDEX, ATTEMPT, SINCE = range(6)

_now_ns = time.monotonic_ns


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """What a worker was at. All of it but `phase` is about `task`."""

    # In the order of the layout.
    task: int = 0
    phase: int = STARTING
    row: int = -1
    index: int = -1
    attempt: int = 0
    since_ns: int = 0


NO_NOTE = Note()


class NoteWriter:
    """The worker's end. Without `memory` it keeps the note to itself, for backends without processes.

    `words` are for the loop over samples, which does what load() does: a call would be a third of the price.
    """

    def __init__(self, memory: bytearray | mmap.mmap | None = None) -> None:
        self._memory = bytearray(NOTE_BYTES) if memory is None else memory
        self.words = memoryview(self._memory)[:NOTE_BYTES].cast("q")
        self.phase(STARTING)

    def begin(self, task: int) -> None:
        """The worker takes a task in hand."""
        words = self.words
        # The task last: a row is never read as one of a task that it does not belong to.
        words[PHASE] = IDLE
        words[ROW] = words[INDEX] = -1
        words[ATTEMPT] = 0
        words[SINCE] = _now_ns()
        words[TASK] = task

    def phase(self, phase: int) -> None:
        """Something begins that is about no single row."""
        words = self.words
        words[ROW] = words[INDEX] = -1
        words[SINCE] = _now_ns()
        words[PHASE] = phase

    def load(self, row: int, index: int) -> None:
        """The dataset is asked for a row's sample; after phase(LOADING)."""
        words = self.words
        words[ROW] = row
        words[INDEX] = index
        words[SINCE] = _now_ns()

    def attempt(self, attempt: int, index: int) -> None:
        """The dataset is asked for another sample in place of the row's own; 0 and the own index when that is over."""
        words = self.words
        words[ATTEMPT] = attempt
        words[INDEX] = index
        words[SINCE] = _now_ns()

    def read(self) -> Note:
        return read_note(self._memory)


def map_note(fd: int) -> NoteWriter:
    """The note behind `fd`, which stays the caller's."""
    return NoteWriter(mmap.mmap(fd, NOTE_BYTES))


def read_note(data: bytes | bytearray | mmap.mmap) -> Note:
    task, phase, row, index, attempt, since_ns = NOTE.unpack_from(data)
    return Note(task, phase, row, index, attempt, since_ns)


class NoteFile:
    """The daemon's end: a memfd for one child process."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("prefetchd-note", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, STACK_OFFSET)
        os.pwrite(self.fd, NOTE.pack(*dataclasses.astuple(NO_NOTE)), 0)

    def read(self) -> Note:
        return read_note(os.pread(self.fd, NOTE_BYTES, 0))

    def close(self) -> None:
        """Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
