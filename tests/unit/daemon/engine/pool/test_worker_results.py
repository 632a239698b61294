"""Where each answer of a worker goes, and what it counts for."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.commands import GrowRing, Log
from prefetchd.daemon.engine.pool.worker_results import WorkerResults
from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.ring.capacity import Bounds
from prefetchd.wire.durations import BOUNDS_S, Durations
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import (
    BadSamples,
    Digested,
    Filled,
    FillFailed,
    Measured,
    Ready,
    ShardCame,
    ShardEnded,
    Spent,
    StoreFailed,
    Unfit,
)
from tests.unit.daemon.engine.stream.rooms import SPEC, given, into, stream_of, walks, works

SHARDED = dataclasses.replace(SPEC, order="iterable", length=-1, logical_shards=2)


class Bed:
    """A stream and a worker of it that has tasks 0, 1, 2 and so on."""

    def __init__(self, slots: int = 4, spec=SPEC) -> None:
        self.commands: list = []
        self.stream = stream_of(slots, self.commands, spec)
        self.stream.bounds, self.stream.wanted_slots = Bounds(8, 8), slots
        walks(self.stream.window)
        self.worker = works(self.stream)
        self.results = WorkerResults(self.commands, lambda worker, task: worker.tasks.pop(task))

    def says(self, *messages) -> None:
        for message in messages:
            self.results.handle(self.worker, message)

    @property
    def logged(self) -> list[tuple[str, str]]:
        return [(each.level, each.event) for each in self.commands if isinstance(each, Log)]


def filled(*tasks: int, times: tuple[int, ...] = ()) -> Filled:
    return Filled(tuple((task, 90, 2000, 4) for task in tasks), times)


def test_a_task_that_is_filled_counts_and_its_batch_once_it_is_ready():
    bed = Bed()
    first = given(bed.worker, 0, 0, 2)
    given(bed.worker, 0, 2, 4)
    bed.says(filled(0))
    counters = bed.stream.counters
    assert (counters.tasks, counters.samples, counters.batches) == (1, 4, 0)
    bed.says(filled(1))
    assert (counters.tasks, counters.batches, counters.payload_bytes) == (2, 1, 90)
    assert (first.batch.filled, bed.worker.fill_us, bed.worker.tasks) == (True, 4000, {})


def test_several_tasks_may_be_answered_at_once():
    bed = Bed()
    pieces = [given(bed.worker, step) for step in range(3)]
    bed.says(filled(0, 2))
    assert [piece.batch.filled for piece in pieces] == [True, False, True]


def test_how_long_rows_took_decides_the_size_of_tasks():
    bed = Bed()
    given(bed.worker, 0)
    bed.says(filled(0))
    assert bed.stream.task_sizes.row_s == 2000 / 1e6 / 4


def test_how_long_samples_took_is_counted():
    bed = Bed()
    given(bed.worker, 0)
    times = Durations()
    times.add(500, times=4)
    bed.says(filled(0, times=times.take()))
    assert bed.stream.counters.sample_durations.total_us == 2000


def test_a_zygote_whose_worker_has_filled_something_is_not_hopeless():
    bed = Bed()
    bed.stream.host_deaths = 2
    given(bed.worker, 0)
    bed.says(filled(0))
    assert bed.stream.host_deaths == 0


def test_a_digest_makes_the_batch_ready_and_takes_time():
    bed = Bed()
    batch = given(bed.worker, 0).batch
    bed.worker.tasks[0] = Piece(batch, 0, 0, digests=True)
    bed.says(Digested(0, 5, 30))
    counters = bed.stream.counters
    assert (batch.filled, batch.digest, counters.batches) == (True, 5, 1)
    assert (counters.tasks, counters.fill_us, bed.worker.fill_us) == (1, 30, 30)


@pytest.mark.parametrize(("layout", "whole"), [(b"layout", False), (b"", True)])
def test_what_is_measured_decides_how_the_stream_is_filled(layout, whole):
    bed = Bed(slots=0)
    bed.worker.tasks[0] = bed.stream.claims.next_piece(7, into(1))
    (batch,) = bed.stream.window.batches.values()
    bed.says(Measured(0, 700, layout))
    assert (bed.stream.batch_bytes, bed.stream.layout) == (700, layout)
    assert (batch.whole, batch.pending[0].keeper) == (whole, 7)


def test_a_row_that_deviates_is_counted_and_its_batch_made_whole():
    bed = Bed()
    batch = given(bed.worker, 0).batch
    bed.says(Unfit.deviating(0, "dtype"))
    assert (bed.stream.counters.deviations, batch.whole) == (1, True)
    assert (batch.grant is not None, bed.stream.claims.roomless) == (True, []), "it has its room"


def test_a_batch_that_takes_more_waits_for_as_many_slots_and_the_ring_grows():
    bed = Bed()
    batch = given(bed.worker, 0, whole=True).batch
    bed.says(Unfit.needing(0, 201))
    assert (batch.span, bed.stream.claims.roomless) == (3, [batch])
    assert [each for each in bed.commands if isinstance(each, GrowRing)] == [GrowRing(1, 6)]


def test_one_that_takes_more_than_its_ring_may_ever_have_fails():
    bed = Bed()
    batch = given(bed.worker, 0, whole=True).batch
    bed.says(Unfit.needing(0, 801))
    assert b"takes 801 bytes" in batch.error
    assert bed.stream.claims.roomless == []
    assert bed.stream.counters.failed == 1


def test_a_batch_that_failed_is_counted_once():
    bed = Bed()
    batch = given(bed.worker, 0, 0, 2).batch
    given(bed.worker, 0, 2, 4)
    bed.says(FillFailed(0, b"it raised"), FillFailed(1, b"it raised, too"))
    assert bed.stream.counters.failed == 1
    assert batch.done


def test_what_a_worker_gives_up_goes_to_another():
    bed = Bed()
    piece = given(bed.worker, 0)
    bed.says(Spent(0))
    assert bed.stream.claims.next_piece(8, into(1)) is piece


def test_a_batch_that_cannot_be_stored_stays_with_its_worker_which_tries_again():
    bed = Bed()
    piece = given(bed.worker, 0, whole=True)
    bed.says(StoreFailed(0, "the disk is full"))
    assert bed.stream.claims.next_piece(8, into(1)).batch is not piece.batch, "it is not another's"
    assert bed.stream.claims.next_piece(7, into(1)) is piece


def test_that_batches_cannot_be_stored_is_logged_once_though_others_can_be():
    bed = Bed()
    for number in range(1, 3):
        bed.worker.tasks.clear()
        given(bed.worker, 0, whole=True)
        bed.says(StoreFailed(0, f"/mnt/ram/{number}: the disk is full"))
        bed.worker.tasks.clear()
        given(bed.worker, number)
        bed.says(filled(0))
    assert bed.logged == [("error", "batches cannot be stored")]
    assert bed.stream.store_fault.reason == "/mnt/ram/2: the disk is full"


def test_bad_samples_are_told_before_their_task_ends():
    bed = Bed()
    given(bed.worker, 0)
    bed.says(BadSamples(0, ((1, 0, 17),), (b"it is broken",)))
    assert bed.stream.counters.bad_samples == 1
    assert list(bed.worker.tasks) == [0]


def test_where_a_shard_can_begin_is_kept():
    bed = Bed(spec=SHARDED)
    bed.says(ShardCame(0, 1, 3, b"state"))
    assert bed.stream.starts.before(0, 1, 3) == (3, b"state")


def test_the_end_of_a_shard_ends_its_task():
    bed = Bed(spec=SHARDED)
    given(bed.worker, 3)
    bed.says(ShardEnded(0, 1))
    assert bed.stream.window.lengths.is_void((0, 3))
    assert (bed.stream.window.batches, bed.worker.tasks) == ({}, {})


@pytest.mark.parametrize(
    "message",
    [
        filled(9),
        filled(0, times=(1, len(BOUNDS_S) + 1, 1)),
        ShardEnded(0, 2),
        ShardCame(0, 2, 3, b"state"),
        Measured(0, 1),
        Ready(""),
    ],
    ids=repr,
)
def test_what_a_worker_does_not_say_changes_nothing(message):
    bed = Bed(spec=SHARDED)
    batch = given(bed.worker, 3).batch
    with pytest.raises(ProtocolError):
        bed.says(message)
    assert list(bed.worker.tasks) == [0]
    assert (batch.under_way, batch.filled, bed.stream.counters.tasks) == (1, False, 0)
