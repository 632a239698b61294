"""A suspect runs alone: nothing begins beside it, and nobody waits for it for ever."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.pool.suspect_isolation import PATIENCE_S, SuspectIsolation
from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.blame import SUSPECTED_AFTER
from prefetchd.daemon.engine.stream.stages import Stage, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState, Worker
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import LOADING, WorkerStatus

SUSPECT = (0, 0)


@pytest.fixture
def stream():
    """A stream that runs, with two workers that are ready, and a suspect in its queue."""
    stream = StreamState(1, StreamSpec("0" * 32, 0, "sequential", 24, 4), [])
    stream.stage = Stage.RUNNING
    for number in (7, 8):
        stream.workers[number] = Worker(number, stream, Host(1, stream=stream), number, WorkerStage.READY)
    for _ in range(SUSPECTED_AFTER):
        stream.blame.died(SUSPECT, WorkerStatus(1, LOADING, 0, 100), alone=False)
    batch = Batch(SUSPECT, 1, whole=True)
    batch.pending = [Piece(batch, 0, 1)]
    stream.claims.queue.add(batch.pending)
    return stream


def begun(alone: SuspectIsolation, stream: StreamState, now_s: float) -> tuple[Worker, Piece]:
    """The suspect has begun, in the worker that the pool gives it to."""
    found = alone.begin([stream], now_s)
    assert found is not None
    worker, piece = found
    worker.tasks[1] = piece
    return worker, piece


def test_it_waits_for_tasks_that_are_under_way_but_not_for_ever(stream):
    alone = SuspectIsolation()
    busy = stream.workers[7]
    busy.tasks[1], busy.head_since_s = Piece(Batch((0, 1), 4), 0, 4), 100.0
    assert alone.waits([stream], stream.workers.values(), 100.0)
    assert alone.waits([stream], stream.workers.values(), 100.0 + PATIENCE_S - 1)
    assert not alone.waits([stream], stream.workers.values(), 100.0 + PATIENCE_S)


def test_nobody_waits_for_it_while_its_stream_has_no_worker_that_is_ready(stream):
    alone = SuspectIsolation()
    for worker in stream.workers.values():
        worker.stage = WorkerStage.STARTING
    assert not alone.waits([stream], stream.workers.values(), 0.0)
    assert alone.begin([stream], 0.0) is None


def test_others_are_held_back_until_it_has_ended(stream):
    alone = SuspectIsolation()
    worker, piece = begun(alone, stream, 100.0)
    assert alone.holds_back(100.0)
    assert alone.is_alone(piece)
    worker.tasks.clear()
    assert not alone.holds_back(100.0)


def test_others_are_held_back_no_longer_than_patience_lasts(stream):
    alone = SuspectIsolation()
    begun(alone, stream, 100.0)
    assert alone.holds_back(100.0 + PATIENCE_S - 1)
    assert not alone.holds_back(100.0 + PATIENCE_S)


def test_who_asks_whether_it_holds_back_does_not_end_it(stream):
    alone = SuspectIsolation()
    begun(alone, stream, 100.0)
    assert not alone.holds_back(100.0 + PATIENCE_S)
    assert alone.is_under_way
    alone.end_if_over(100.0)
    assert alone.is_under_way
    alone.end_if_over(100.0 + PATIENCE_S)
    assert not alone.is_under_way


def test_a_task_that_begins_beside_it_takes_its_solitude_away(stream):
    alone = SuspectIsolation()
    worker, piece = begun(alone, stream, 100.0)
    alone.began(worker)
    assert alone.is_alone(piece), "it is the suspect's own worker"
    alone.began(next(each for each in stream.workers.values() if each is not worker))
    assert not alone.is_alone(piece)
