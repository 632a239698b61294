"""A window with a ring, as the rooms of one stream share it; what is ready in it, and who walks over it. And a stream
of such rooms, with its workers."""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.daemon.engine.commands import Command
from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.stages import Stage, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState, Worker
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import Cursor, EpochLengths, new_cursor
from prefetchd.ring.policy import Ring
from prefetchd.wire.stream_spec import Position, StreamSpec

SPEC = StreamSpec("0" * 32, 0, "sequential", 24, 4)
STEPS = 9
KEY = ("trainer", 1)


def window_of(slots: int) -> Window:
    """A window over epochs of STEPS batches, with a ring of so many slots; 0: none yet."""
    window = Window(EpochLengths(STEPS), lambda slot, record: None)
    if slots:
        window.ring = Ring(slots)
        window.ring.reserve(slots)
    return window


def ready(window: Window, step: int) -> Batch:
    """A batch of epoch 0 that is ready."""
    assert window.ring is not None
    grant = window.ring.claim()
    assert grant is not None
    window.ring.fill(grant)
    batch = window.batches[0, step] = Batch((0, step), 1, grant, filled=True)
    return batch


def into(pieces: int) -> Callable[[Position], int]:
    """Each batch is cut into so many pieces."""
    return lambda position: pieces


def walks(window: Window, step: int = 0, key: tuple[str, int] = KEY, *, waiting: bool = False) -> Cursor:
    """A cursor at that step of epoch 0."""
    cursor = window.cursors[key] = new_cursor(key, key[0], (0, step), waiting, window.lengths)
    window.cursors_moved()
    return cursor


def stream_of(slots: int, commands: list[Command] | None = None, spec: StreamSpec = SPEC) -> StreamState:
    """A running stream with a ring of so many slots; 0: none yet. Its commands are appended to `commands`."""
    stream = StreamState(1, spec, commands if commands is not None else [])
    stream.stage, stream.host = Stage.RUNNING, Host(1, stream=stream, ready=True)
    if slots:
        stream.window.ring = Ring(4 * slots)
        stream.window.ring.reserve(slots)
        stream.slot_bytes = 100
    return stream


def works(stream: StreamState, number: int = 7, stage: WorkerStage = WorkerStage.READY) -> Worker:
    """One more worker of the stream."""
    assert stream.host is not None
    worker = stream.workers[number] = Worker(number, stream, stream.host, len(stream.workers), stage)
    stream.workers_changed()
    return worker


def given(worker: Worker, step: int, first: int = 0, end: int = 4, *, whole: bool = False) -> Piece:
    """A piece of the batch at that step of epoch 0, as the worker's next task: rows [first, end) of four."""
    window = worker.stream.window
    batch = window.batches.get((0, step))
    if batch is None:
        grant = window.ring.claim() if window.ring is not None else None
        batch = window.batches[0, step] = Batch((0, step), 4, grant, whole)
    batch.under_way += 1
    piece = worker.tasks[len(worker.tasks)] = Piece(batch, first, end)
    return piece
