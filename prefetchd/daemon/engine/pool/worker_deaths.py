"""Handles a worker's death: its rows go to others, and what killed it may be found out. Pure. Decision 0018 has the
reasons."""

from __future__ import annotations

from prefetchd.daemon.engine.commands import Command, Log
from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.blame import (
    Verdict,
    blamed_error,
    given_up_error,
    overdue_error,
    what_was_made,
)
from prefetchd.daemon.engine.stream.stages import Stuck, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import FailStream, StreamState, Worker
from prefetchd.processes.process_exit import UNEXPLAINED, ProcessExit, is_hopeless
from prefetchd.wire.worker_status import LOADING, NO_WORKER_STATUS, WorkerStatus


class Deaths:
    """Handles each worker that died without being told to, once nothing of it can write any more."""

    def __init__(self, commands: list[Command], fail_stream: FailStream) -> None:
        self._commands = commands
        self._fail_stream = fail_stream

    def handle(self, worker: Worker, how: ProcessExit, note: WorkerStatus, *, alone: bool, innocent: bool) -> None:
        """Gives the worker's tasks to others; the one that it had in hand is judged, or fails if it was overdue.
        `alone`: nothing else ran beside that task. `innocent`: something else is known to have killed the worker."""
        stream = worker.stream
        stream.counters.worker_deaths += 1
        tasks = list(worker.tasks.items())
        stream.counters.retries += bool(tasks)
        if not tasks or note.task != tasks[0][0] or how == UNEXPLAINED:
            # Between two tasks a status is about none; of a worker that died of its zygote's death, about nothing of
            # its own.
            note = NO_WORKER_STATUS
        about = {"at": what_was_made(note, tasks[0][1].batch.position)} if tasks else {}
        self._commands.append(
            Log.line("warning", "worker died", stream=stream.name, worker=worker.number, how=str(how), **about)
        )
        if worker.stage is WorkerStage.STARTING:
            # A death that follows from the zygote's counts as the zygote's.
            if not innocent and not how.follows_from_zygote:
                self._died_at_start(stream, how)
            return
        if not tasks:
            return
        # The task at hand is the oldest; the others only waited behind it. They go first again, in their order.
        task, piece = tasks[0]
        if piece.owner_task is not None:
            # Nothing is lost. But what ends helpers is the batch's: it is made without them from then on.
            if not innocent:
                stream.blame.died(piece.batch.position, note, alone=False)
        elif stream.begins is not None and piece.begins:
            stream.begins.lost(piece, died=not innocent and worker.stage is not WorkerStage.STOPPING)
        elif worker.overdue_task == task:
            self._fail(stream, piece, _overdue(worker, piece, note))
        elif innocent or piece.batch.error is not None or piece.batch.cancelled:
            stream.filling.lost(piece)
        else:
            self._judge(stream, piece, how, note, alone)
        for _, piece in tasks[1:]:
            stream.lost(piece)

    def _judge(self, stream: StreamState, piece: Piece, how: ProcessExit, note: WorkerStatus, alone: bool) -> None:
        position = piece.batch.position
        verdict = stream.blame.died(position, note, alone=alone)
        if verdict is Verdict.AGAIN:
            stream.filling.lost(piece)
        elif verdict is Verdict.GIVEN_UP:
            self._fail(stream, piece, given_up_error(note, position, how))
        elif note.phase == LOADING and stream.spec.on_error != "raise":
            self._commands.append(
                Log.line("warning", "sample blamed", stream=stream.name, at=what_was_made(note, position), how=str(how))
            )
            stream.blame.call_deadly(position, note.row, note.attempt)
            # A batch that is made by rows cannot do with one less: it is made as a whole.
            if stream.spec.on_error == "skip" and not piece.batch.is_whole_task:
                stream.filling.deviates(piece)
            else:
                stream.filling.lost(piece)
        else:
            self._commands.append(
                Log.line("error", "sample blamed", stream=stream.name, at=what_was_made(note, position), how=str(how))
            )
            self._fail(stream, piece, blamed_error(note, position, how))

    def _fail(self, stream: StreamState, piece: Piece, error: bytes) -> None:
        if stream.filling.failed(piece, error):
            stream.counters.failed += 1

    def _died_at_start(self, stream: StreamState, how: ProcessExit) -> None:
        stream.deaths_at_start += 1
        if is_hopeless(stream.deaths_at_start, how):
            text = f"{stream.deaths_at_start} workers in a row died before they were ready: {how}"
            self._fail_stream(stream, "stream_failed", text)


def _overdue(worker: Worker, piece: Piece, note: WorkerStatus) -> bytes:
    stuck = worker.stuck or Stuck()
    return overdue_error(
        note,
        piece.batch.position,
        worker.stream.spec.timeout_s,
        stuck.frames,
        may_be_a_lock=stuck.sleeps and worker.host.is_fork,
    )
