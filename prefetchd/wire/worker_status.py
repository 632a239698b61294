"""Defines a worker's status: what it is doing, in memory that the daemon reads, so that it is known when the worker is
stuck or dead.

    offset   0  task       number of the task that it has in hand or had last; 0: none yet
             8  phase      one of the phases below
            16  row        row within the batch, or -1: none, or all at once
            24  index      what the dataset is asked for, or -1
            32  attempt    0: the row's own sample; else the number of the sample that substitutes for it
            40  since_ns   monotonic clock when the row or the phase began
            48  damage     1: damaged samples were found in a sample cache that the worker reads, at any time
            56  reserved
            64  end; from STACK_OFFSET on stacks are written (stack_dumps), from SAMPLES_OFFSET on samples that other
                workers have loaded for this one (workers.shared_samples)

Words of 64 bits in the machine's own order, in a memfd that the daemon makes and hands over when it starts the worker.
One writer, the worker. Nothing waits for a status and nothing is decided by a living worker's: one that is read while
it changes may mix two rows. A dead worker's is final.
"""

from __future__ import annotations

import dataclasses
import struct

STARTING, IDLE, LOADING, COLLATING, WRITING, DIGESTING, SAMPLING, ITERATING, IMPORTING = range(9)
PHASES = ("starting", "idle", "loading", "collating", "writing", "digesting", "sampling", "iterating", "importing")

ALL_AT_ONCE = -1
"""The row of what concerns no single row, such as __getitems__."""

STATUS_WORDS = struct.Struct("=7q8x")
STATUS_WORDS_BYTES = STATUS_WORDS.size
STACK_OFFSET = 4096
SAMPLES_OFFSET = 1 << 32

TASK, PHASE, ROW, INDEX, ATTEMPT, SINCE, DAMAGE = range(7)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The work that a worker was doing. All fields but `phase` and `damage` are about
    `task`."""

    # In the order of the layout.
    task: int = 0
    phase: int = STARTING
    row: int = -1
    index: int = -1
    attempt: int = 0
    since_ns: int = 0
    damage: int = 0


NO_WORKER_STATUS = WorkerStatus()


def read_worker_status(data: bytes | memoryview) -> WorkerStatus:
    """Decodes the status in the first bytes of `data`. Its writer runs the user's code: an unknown phase is read as
    IDLE."""
    task, phase, row, index, attempt, since_ns, damage = STATUS_WORDS.unpack_from(data)
    if not 0 <= phase < len(PHASES):
        phase = IDLE
    return WorkerStatus(task, phase, row, index, attempt, since_ns, damage)
