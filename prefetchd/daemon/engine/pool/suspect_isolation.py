"""Runs a suspect alone: while no other task is under way in any worker of the daemon. Pure. Decision 0018 has the
reasons."""

from __future__ import annotations

from collections.abc import Collection

from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.stages import Stage, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker

PATIENCE_S = 30.0
"""The longest wait for a task, whether it is a suspect or stands in its way: one that never ends must not stop all
streams."""


class SuspectIsolation:
    """Lets at most one suspect run at a time."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._piece: Piece | None = None
        self._began_s = 0.0
        self._disturbed = False

    def is_alone(self, piece: Piece) -> bool:
        """True when the piece is under way and nothing was begun beside it."""
        return self._piece is piece and not self._disturbed

    def began(self, worker: Worker) -> None:
        """Notes that the worker has begun the next of the tasks that it had: it was not waited for, but goes on after
        all, beside the suspect."""
        if worker is not self._worker:
            self._disturbed = True

    @property
    def is_under_way(self) -> bool:
        return self._piece is not None

    def holds_back(self, now_s: float) -> bool:
        """True while no other task may begin: a suspect is at its task, and not for too long."""
        worker = self._worker
        return worker is not None and self._piece in worker.tasks.values() and now_s - self._began_s < PATIENCE_S

    def end_if_over(self, now_s: float) -> None:
        """Forgets the suspect that is under way once it holds nobody back any more."""
        if not self.holds_back(now_s):
            self._worker = self._piece = None

    def waits(self, streams: Collection[StreamState], workers: Collection[Worker], now_s: float) -> bool:
        """True while a suspect is ready to begin and tasks that are under way must end before it can."""
        return any(map(_could_begin, streams)) and any(
            worker.busy and now_s - worker.head_since_s < PATIENCE_S for worker in workers
        )

    def begin(self, streams: Collection[StreamState], now_s: float) -> tuple[Worker, Piece] | None:
        """Begins the next suspect, and returns its worker and piece; None when there is none, or no idle worker for it.
        Only while waits() is False."""
        for stream in streams:
            if not _could_begin(stream):
                continue
            worker = next((each for each in _ready(stream) if not each.busy), None)
            if worker is not None:
                self._worker, self._piece, self._began_s = worker, stream.claims.queue.next_suspect(), now_s
                self._disturbed = False
                return worker, self._piece
        return None


def _could_begin(stream: StreamState) -> bool:
    # Until its stream has a ready worker the others may go on.
    return stream.stage is Stage.RUNNING and stream.claims.queue.has_suspect and bool(_ready(stream))


def _ready(stream: StreamState) -> list[Worker]:
    return [worker for worker in stream.workers.values() if worker.stage is WorkerStage.READY]
