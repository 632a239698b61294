"""When a batch is taken back from another machine: in time, and no sooner."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.pool import hedging
from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.consumers import Consumer
from prefetchd.daemon.engine.stream.remote_work import RemoteTask, RemoteWork, RemoteWorker
from prefetchd.daemon.engine.stream.supply import MOST_UNTOLD
from tests.unit.daemon.engine.stream.rooms import stream_of, walks, works

GIVEN_S = 100.0


class Bed:
    """One remote worker with the batch at `step`, given at GIVEN_S; answers take a second. Two workers here take 0.2 s
    for a batch together; the trainer takes ten batches a second."""

    def __init__(self, step: int) -> None:
        self.stream = stream_of(16)
        self.work = RemoteWork(1)
        self.cursor = walks(self.stream.window)
        consumer = self.stream.consumers[1] = Consumer(1, 4711, 0, 1, True)
        consumer.pace.took(10, GIVEN_S)
        for number in (7, 8):
            works(self.stream, number)
        self.stream.task_sizes.row_s = 0.1
        for _ in range(200):
            self.work.arrivals.came(1.0, 5)
        batch = self.stream.window.batches[0, step] = Batch((0, step), 4)
        worker = self.work.workers[1] = RemoteWorker(1, "a")
        self.task = worker.tasks[1] = RemoteTask(1, Piece(batch, 0, 4), GIVEN_S, 0)

    def is_due(self, after_s: float) -> bool:
        """Whether it is, so long after it was given; the trainer has just told how far it is."""
        for consumer in self.stream.consumers.values():
            consumer.pace.took(0, GIVEN_S + after_s)
        return self.task in hedging.due(self.stream, self.work, GIVEN_S + after_s)


def test_what_is_not_overdue_is_left_where_it_is_even_if_it_is_needed():
    bed = Bed(step=0)
    bed.cursor.blocked = True
    assert not bed.is_due(0.9)
    assert bed.is_due(1.2)


def test_what_is_overdue_and_not_needed_for_long_is_left_too():
    bed = Bed(step=9)
    assert not bed.is_due(5.0)


def test_it_is_taken_back_while_there_is_time_to_make_it_here():
    assert hedging.needed_in_s(Bed(3).stream, Bed(3).task, GIVEN_S) == pytest.approx(0.3)
    assert hedging.made_here_in_s(Bed(3).stream, 4) == pytest.approx(0.2)
    assert Bed(step=4).is_due(1.2)
    assert not Bed(step=5).is_due(1.2)


def test_a_trainer_has_gone_on_since_it_told_how_far_it_was():
    bed = Bed(step=30)
    assert hedging.needed_in_s(bed.stream, bed.task, GIVEN_S) == pytest.approx(3.0)
    assert hedging.needed_in_s(bed.stream, bed.task, GIVEN_S + 0.5) == pytest.approx(2.5)
    # It never has more to tell than it tells at once.
    assert hedging.needed_in_s(bed.stream, bed.task, GIVEN_S + 2.0) == pytest.approx((30 - MOST_UNTOLD) / 9.8, abs=0.1)


def test_workers_do_first_what_they_have():
    bed = Bed(step=9)
    (one, other) = bed.stream.workers.values()
    for number, worker in enumerate((one, one, other)):
        worker.tasks[number] = Piece(Batch((0, number), 4), 0, 4)
    # Six tenths for what they have, four for this one twice.
    assert bed.is_due(1.2)
    other.tasks.clear()
    assert not bed.is_due(1.2)


def test_a_batch_that_is_made_whole_takes_one_worker_all_of_its_time():
    bed = Bed(step=3)
    bed.stream.claims.whole_only = True
    assert hedging.made_here_in_s(bed.stream, 4) == pytest.approx(0.4)


def test_a_trainer_without_a_pace_needs_nothing_but_what_comes_next():
    bed = Bed(step=3)
    bed.stream.consumers.clear()
    assert hedging.needed_in_s(bed.stream, bed.task, GIVEN_S) == float("inf")
    assert hedging.needed_in_s(bed.stream, Bed(0).task, GIVEN_S) == 0.0


def test_as_long_as_nobody_knows_how_long_answers_take_only_what_is_waited_for_is_taken_back():
    bed = Bed(step=0)
    bed.work = RemoteWork(1)
    bed.work.workers[1] = RemoteWorker(1, "a", tasks={1: bed.task})
    assert not bed.is_due(60.0)
    bed.cursor.blocked = True
    assert bed.is_due(0.0)


def test_what_nobody_wants_any_more_is_taken_back_at_once_and_each_task_once():
    bed = Bed(step=9)
    bed.task.piece.batch.cancelled = True
    assert bed.is_due(0.0)
    bed.task.is_revoked = True
    assert not bed.is_due(0.0)
