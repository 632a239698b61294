"""Task sizes follow how long a stream's rows take: into how many pieces a batch is cut, and how many tasks a worker has
at once. Pure. The reasons of rule 2 are in decision 0115.

1. A batch that comes next is cut into one piece a ready worker, but none shorter than SHORTEST_PIECE_S. While it is not
   known how long rows take, into one a worker.
2. One that comes later is cut into fewer: each task has a cost, and nobody waits for it alone. The further it lies
   ahead, the fewer, as long as half of the ring keeps all workers busy, and none is longer than LONGEST_PIECE_S.
3. A batch whose worker is decided by its place is one piece.
4. A worker has two tasks at once, four where they are shorter than SHORT_PIECE_S: the next one waits in its socket, so
   that it never idles between two. One longer than LONG_PIECE_S keeps no other waiting, nor does one of which it is not
   known how long it takes: what comes first would wait behind what comes later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from prefetchd.daemon.engine.stream.stages import WorkerStage

SHORTEST_PIECE_S = 0.004
"""With one piece of 4 ms instead of two, 8 % more rows of tokens were made (`python -m benchmarks.tokens`)."""
LONGEST_PIECE_S = 0.25
NEXT = 2
"""The batches that come next (rule 1)."""
SHORT_PIECE_S = 0.0005
LONG_PIECE_S = 0.05
SMOOTHING = 0.1


class HasStage(Protocol):
    """The part of a worker that is needed here."""

    stage: WorkerStage


class TaskSizes:
    """The sizes of one stream's tasks. `row_s` is how long a row takes, 0 as long as nobody knows; `pieces` are those
    of a batch that comes next."""

    def __init__(self, rows_per_batch: int, workers: Mapping[int, HasStage], *, by_turns: bool) -> None:
        """`workers` is the stream's own mapping; whoever changes it, or a worker's stage, calls cut_anew(). `by_turns`
        says that a batch's place decides its worker (rule 3)."""
        self._rows_per_batch = rows_per_batch
        self._workers = workers
        self._by_turns = by_turns
        self.row_s = 0.0
        self._ready = 0
        self.pieces = 1
        self.tasks_a_worker = 1

    def timed(self, rows: int, duration_s: float) -> None:
        """Notes that a task of `rows` rows took `duration_s`."""
        row_s = duration_s / rows
        self.row_s = row_s if not self.row_s else self.row_s + SMOOTHING * (row_s - self.row_s)
        self.cut_anew()

    def pieces_at(self, lead: int, ring_batches: float) -> int:
        """Returns into how many pieces a batch is cut before which `lead` others come, of a ring of so many."""
        if lead < NEXT:
            return self.pieces
        busy = math.ceil(2 * self._ready / max(1.0, ring_batches))
        longest = math.ceil(self.row_s * self._rows_per_batch / LONGEST_PIECE_S)
        return max(1, min(self.pieces, max(math.ceil(self._ready / lead), busy, longest)))

    def cut_anew(self) -> None:
        """Sets `pieces` and `tasks_a_worker`, after rows have become slower or faster, or workers have come or gone."""
        ready = self._ready = sum(worker.stage is WorkerStage.READY for worker in self._workers.values())
        batch_s = self.row_s * self._rows_per_batch
        if self._by_turns:
            ready = min(ready, 1)
        self.pieces = max(1, min(ready, int(batch_s / SHORTEST_PIECE_S) if self.row_s else ready))
        piece_s = batch_s / self.pieces
        if not self.row_s or piece_s > LONG_PIECE_S:
            self.tasks_a_worker = 1
        else:
            self.tasks_a_worker = 2 if piece_s > SHORT_PIECE_S else 4
