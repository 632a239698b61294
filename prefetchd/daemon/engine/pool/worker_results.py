"""Handles what workers answer to their tasks, and what becomes of pieces with it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from prefetchd.daemon.engine.commands import Command, Log, Send
from prefetchd.daemon.engine.pool.answer_checks import check_answer
from prefetchd.daemon.engine.pool.node_faults import exclude
from prefetchd.daemon.engine.stream.bad_samples import BadSampleNews
from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.growth import grow_for, is_too_large, too_large
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import (
    BadSamples,
    Compared,
    Digested,
    FilesChecked,
    Filled,
    FillFailed,
    Helped,
    Measured,
    Message,
    SamplesWrote,
    ShardBegun,
    ShardCame,
    ShardEnded,
    Spent,
    StoreFailed,
    Unfit,
)


class WorkerResults:
    """Takes each answer to where it belongs. `take` ends a worker's task and returns its piece; it raises ProtocolError
    for a task that the worker was not given."""

    def __init__(self, commands: list[Command], take: Callable[[Worker, int], Piece]) -> None:
        self._commands = commands
        self._take = take
        self._bad_samples = BadSampleNews(commands)

    def handle(self, worker: Worker, message: Message) -> None:
        """Takes in a worker's answer. Raises ProtocolError for what a worker does not say; nothing has changed then."""
        check_answer(worker, message)
        if isinstance(message, Filled):
            for row, opened in zip(message.tasks, itertools.chain(message.opened, itertools.repeat(b""))):
                self._filled(worker, row, opened)
            worker.stream.counters.samples_took(message.sample_times)
        elif isinstance(message, Digested):
            worker.fill_us += message.duration_us
            self._digested(worker.stream, self._take(worker, message.task), message)
        elif isinstance(message, FilesChecked):
            worker.fill_us += message.duration_us
            self._files_checked(worker.stream, self._take(worker, message.task), message)
        elif isinstance(message, Compared):
            worker.fill_us += message.duration_us
            self._compared(worker.stream, self._take(worker, message.task), message)
        elif isinstance(message, Helped):
            helped = self._take(worker, message.task)
            if message.opened:
                helped.batch.opened.append(message.opened)
            worker.fill_us += message.duration_us
            worker.stream.counters.fill_us += message.duration_us
            worker.stream.unhelpful |= not message.of_use
        elif isinstance(message, Measured):
            self._measured(worker, self._take(worker, message.task), message)
        elif isinstance(message, Unfit):
            self._unfit(worker, self._take(worker, message.task), message)
        elif isinstance(message, FillFailed):
            _fail(worker.stream, self._take(worker, message.task), message.error)
        elif isinstance(message, SamplesWrote):
            # A dataset that has been iterated over goes on where it is: another process has not what it has become.
            worker.stream.is_private = True
            if not worker.stream.shards:
                self._wrote(worker.stream, message.what)
        elif isinstance(message, ShardCame):
            worker.stream.starts.take(message)
        elif isinstance(message, ShardBegun):
            piece = self._take(worker, message.task)
            if worker.stream.begins is not None:
                worker.stream.begins.begun(piece)
        elif isinstance(message, Spent):
            worker.stream.lost(self._take(worker, message.task))
        elif isinstance(message, ShardEnded):
            # Checked before _take() ends the task: what raises has changed nothing.
            worker.stream.filling.check_shard_end(worker.tasks[message.task], message.batches)
            worker.stream.filling.shard_ended(self._take(worker, message.task), message.batches)
        elif isinstance(message, StoreFailed):
            self._store_failed(worker, self._take(worker, message.task), message)
        elif isinstance(message, BadSamples):
            self._bad_samples.take(worker, worker.tasks[message.task], message)
        else:
            raise ProtocolError(f"a worker does not send {type(message).__name__}")

    def _filled(self, worker: Worker, row: tuple[int, ...], opened: bytes) -> None:
        task, payload_bytes, duration_us, samples = row
        piece = self._take(worker, task)
        stream = worker.stream
        stream.task_sizes.timed(max(1, piece.rows), duration_us / 1e6)
        stream.counters.task_took(duration_us, samples)
        worker.fill_us += duration_us
        stream.host_deaths = 0
        if stream.store_fault.reason:
            stream.store_fault.stored()
        if stream.filling.filled(piece, payload_bytes, opened):
            stream.counters.batch_is_ready(piece.batch.payload_bytes)

    def _files_checked(self, stream: StreamState, piece: Piece, message: FilesChecked) -> None:
        stream.counters.tasks += 1
        stream.counters.fill_us += message.duration_us
        stream.filling.files_checked(piece, unchanged=message.unchanged)
        if not message.unchanged:
            self._commands.append(
                Log.line(
                    "info",
                    "file changed",
                    stream=stream.name,
                    path=message.path,
                    epoch=piece.batch.position[0],
                    step=piece.batch.position[1],
                    then="the batch is made again",
                )
            )

    def _digested(self, stream: StreamState, piece: Piece, message: Digested) -> None:
        stream.counters.tasks += 1
        stream.counters.fill_us += message.duration_us
        if stream.filling.digested(piece, message.digest):
            stream.counters.batch_is_ready(piece.batch.payload_bytes)

    def _compared(self, stream: StreamState, piece: Piece, message: Compared) -> None:
        stream.counters.tasks += 1
        stream.counters.fill_us += message.duration_us
        if not message.is_equal:
            what = "a batch" if message.row < 0 else f"row {message.row}"
            epoch, step = piece.batch.position
            if stream.remote is not None:
                why = (
                    f"{what} of epoch {epoch}, step {step} has other bytes than here, and no file that it read differs"
                )
                exclude(stream, piece.node, why, piece.batch.position, self._commands)
            stream.filling.differs(piece, stream.task_sizes.pieces)
            return
        is_whole = piece.rows == piece.batch.rows
        if stream.remote is not None:
            stream.remote.compared(piece.node, piece.batch.position, message.duration_us, is_whole=is_whole)
        if not is_whole:
            piece.batch.node = piece.node
        if stream.filling.filled(piece, piece.batch.payload_bytes):
            stream.counters.batch_is_ready(piece.batch.payload_bytes)

    def _store_failed(self, worker: Worker, piece: Piece, message: StoreFailed) -> None:
        """Has the worker, which keeps the batch, try again; other tasks have their turn first. Where there is no room,
        a batch that comes later gives way."""
        stream = worker.stream
        if stream.store_fault.failed(message.reason):
            self._commands.append(Log.line("error", "batches cannot be stored", stream=stream.name, why=message.reason))
        stream.filling.lost(piece)
        piece.keeper = worker.number
        if message.is_full:
            stream.claims.finds_no_room(piece.batch)

    def _measured(self, worker: Worker, piece: Piece, message: Measured) -> None:
        stream = worker.stream
        stream.batch_bytes = message.payload_bytes
        stream.layout = message.layout
        stream.one_by_one = message.one_by_one
        if message.wrote if not stream.spec.workers else message.varies:
            # The trainer makes all samples again, in the order in which they depend on each other.
            stream.claims.halted = self._wrote(stream, message.wrote)
        stream.filling.measured(piece, worker.number, by_rows=bool(message.layout), pieces=stream.task_sizes.pieces)

    def _wrote(self, stream: StreamState, what: str) -> bool:
        """Report to the stream's trainers that samples depend on the process that makes them, or write into it. False
        when none of them can do anything about it."""
        if stream.spec.private or stream.keeper is not None:
            return False
        stream.is_private = True
        self._commands.append(Log.line("info", "samples write", stream=stream.name, what=what))
        for consumer in stream.consumers.values():
            if consumer.session >= 0 and consumer.has_program and not consumer.departed:
                self._commands.append(Send(consumer.session, SamplesWrote(what)))
        return True

    def _unfit(self, worker: Worker, piece: Piece, message: Unfit) -> None:
        stream = worker.stream
        ring = stream.window.ring
        if piece.node:
            # What does not fit here was made elsewhere: it differs. Perhaps a sample failed here alone, so the node is
            # compared again, and not refused.
            if stream.remote is not None:
                stream.remote.doubt(piece.node)
            stream.filling.differs(piece, stream.task_sizes.pieces)
            return
        if message.deviates:
            stream.counters.deviations += 1
            stream.filling.deviates(piece)
            return
        assert ring is not None
        span = -(-message.payload_bytes // stream.slot_bytes)
        if is_too_large(stream, span):
            _fail(stream, piece, too_large(stream, piece.batch, message.payload_bytes))
            return
        stream.filling.too_large(piece, span, worker.number)
        grow_for(stream, span, self._commands)


def _fail(stream: StreamState, piece: Piece, error: bytes) -> None:
    if stream.filling.failed(piece, error):
        stream.counters.failed += 1
