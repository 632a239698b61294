"""What a stream says of itself: who consumes it, what it takes, and what of a dead daemon's batches is its own."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.commands import WriteSlot
from prefetchd.daemon.engine.stream.adoption import FoundBatch
from prefetchd.daemon.engine.stream.consumers import AbsentConsumer, Consumer
from prefetchd.daemon.engine.stream.stages import Stage, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState
from prefetchd.ring.policy import Grant
from prefetchd.wire.messages import Hello
from prefetchd.wire.segment_layout import CONSUMERS, SLOT_FILLING
from tests.unit.daemon.engine.stream.rooms import SPEC, given, into, ready, stream_of, walks, works

SAMPLED = dataclasses.replace(SPEC, order="sampler")
SHARDED = dataclasses.replace(SPEC, order="iterable", length=-1, logical_shards=3)


def consumed(stream: StreamState, session: int, record: int = 0, *, departed: bool = False) -> Consumer:
    consumer = stream.consumers[session] = Consumer(session, 100, record, 1, True, departed=departed)
    return consumer


def absent(stream: StreamState, record: int, *, departed: bool = False) -> None:
    stream.absents[record] = AbsentConsumer(record, 100, None, departed)


# --- consumers ---


def test_it_is_in_use_while_somebody_consumes_it_or_may_come_back():
    stream = stream_of(4)
    assert not stream.in_use
    consumer = consumed(stream, 5)
    assert stream.in_use
    consumer.departed = True
    assert not stream.in_use, "it only holds tensors"
    absent(stream, 1)
    assert stream.in_use
    assert stream.is_awaited


def test_an_absent_consumer_that_has_departed_does_not_come_back():
    stream = stream_of(4)
    absent(stream, 1, departed=True)
    assert not stream.is_awaited
    assert not stream.in_use


def test_an_absent_consumer_is_known_by_its_ring_and_its_record():
    stream = stream_of(4)
    stream.ring_id = 9
    absent(stream, 1)

    def hello(consumer: int, ring: int) -> Hello:
        return Hello(1, "trainer", "test", 1, "s", "", b"", False, consumer=consumer, ring=ring)

    assert stream.awaits(hello(1, 9))
    assert not stream.awaits(hello(1, 8))
    assert not stream.awaits(hello(2, 9))


def test_each_consumer_gets_a_record_that_nobody_writes():
    stream = stream_of(4)
    consumed(stream, 5, record=0)
    absent(stream, 1)
    assert stream.free_record() == 2
    for record in range(CONSUMERS):
        absent(stream, record)
    assert stream.free_record() is None


def test_it_is_short_while_a_next_waits():
    stream = stream_of(4)
    consumed(stream, 5)
    cursor = walks(stream.window)
    for step in range(4):
        ready(stream.window, step)
    assert not stream.is_short(0.0)
    cursor.blocked = True
    assert stream.is_short(0.0)


def test_a_new_consumer_s_wishes_change_no_batch():
    stream = StreamState(1, dataclasses.replace(SPEC, name="mine"), [])
    stream.serve_as(dataclasses.replace(SPEC, name="other", lookback=3, low_watermark=2, high_watermark=6))
    assert (stream.name, stream.spec.lookback, stream.window.lookback.wanted) == ("mine", 3, 3)
    assert (stream.window._low, stream.window._high) == (2, 6)


def test_it_lingers_until_a_time_is_set_no_more():
    stream = stream_of(4)
    assert not stream.lingers
    stream.lingers_until_s = 0.0
    assert stream.lingers


# --- program ---


def test_whether_there_will_be_a_program_depends_on_who_was_asked_until_one_is_there():
    stream = StreamState(1, SPEC, [])
    stream.requests.program_from = 5
    assert stream.awaits_program_of(5)
    assert not stream.awaits_program_of(6)
    stream.stage = Stage.LOADING
    assert not stream.awaits_program_of(5), "another was faster"


def test_a_host_of_a_trainer_s_session_is_a_fork():
    assert Host(1, session=5).is_fork
    assert not Host(1).is_fork


# --- workers ---


def test_a_stream_has_the_workers_that_were_asked_for():
    assert stream_of(0, spec=SPEC).workers_asked(6) == 6
    assert stream_of(0, spec=dataclasses.replace(SPEC, workers=2)).workers_asked(6) == 2
    assert stream_of(0, spec=SHARDED).workers_asked(6) == 3, "one a shard"


def test_workers_that_come_or_go_decide_in_how_many_pieces_a_batch_is_cut():
    stream = stream_of(4)
    for number in range(3):
        works(stream, number)
    assert stream.task_sizes.pieces == 3
    stream.workers[0].stage = WorkerStage.STOPPING
    stream.workers_changed()
    assert stream.task_sizes.pieces == 2


def test_a_worker_is_busy_while_it_has_a_task():
    worker = works(stream_of(4))
    assert not worker.busy
    given(worker, 0)
    assert worker.busy


@pytest.mark.parametrize(
    ("spec", "turns"),
    [(SPEC, 0), (SHARDED, 3), (dataclasses.replace(SPEC, dealt=True, workers=2), 2)],
    ids=["any worker", "shards", "dealt"],
)
def test_shards_and_what_is_dealt_have_homes(spec, turns):
    stream = stream_of(4, spec=spec)
    assert (stream.shard_affinity is not None) == bool(turns)
    for number in range(3):
        works(stream, number)
    if turns:
        stream.shard_affinity.want(3)
        assert [stream.shard_affinity.of((0, step)) for step in range(turns + 1)] == [*range(turns), 0]


def test_workers_that_come_or_go_have_the_shards_homes_found_anew():
    stream = stream_of(4, spec=SHARDED)
    stream.shard_affinity.want(1)
    works(stream, 7)
    assert stream.shard_affinity.of((0, 0)) == 7
    del stream.workers[7]
    works(stream, 8)
    assert stream.shard_affinity.of((0, 0)) == 8
    assert stream.task_sizes.pieces == 1


# --- ring ---


def test_without_a_ring_it_takes_no_memory():
    stream = stream_of(0)
    stream.wanted_slots, stream.slot_bytes = 4, 100
    assert stream.ring_bytes == 0
    stream = stream_of(4)
    stream.wanted_slots = 6
    assert stream.window.wanted_slots == 6
    assert stream.ring_bytes == 600, "also what it is about to take"


def test_what_the_window_claims_is_written_into_the_ring():
    commands: list = []
    stream = stream_of(4, commands)
    walks(stream.window)
    stream.claims.next_piece(7, into(1))
    (write,) = [each for each in commands if isinstance(each, WriteSlot)]
    assert (write.stream, write.slot, write.record.state) == (1, 0, SLOT_FILLING)


@pytest.mark.parametrize(
    ("spec", "position", "plan", "rows"),
    [
        (SPEC, (0, 5), 0, 4),
        (SPEC, (0, 6), 0, 0),
        (dataclasses.replace(SPEC, length=22), (0, 5), 0, 2),
        (SHARDED, (3, 500), 0, 4),
        (SAMPLED, (0, 5), 17, 1),
        (SAMPLED, (0, 5), 0, 0),
    ],
    ids=["whole", "after the end", "the last", "of a shard", "of a plan", "of no plan"],
)
def test_what_a_dead_daemon_s_batch_has_by_this_stream_s_order(spec, position, plan, rows):
    nobody: frozenset = frozenset()
    found = FoundBatch(Grant((0,), 1), position, 90, 0, False, nobody, nobody, nobody, plan)
    assert StreamState(1, spec, []).rows_found(found) == rows


def test_where_all_epochs_are_equal_the_window_knows_their_length():
    assert stream_of(4).window.epoch_steps == 0
    assert stream_of(4, spec=dataclasses.replace(SPEC, equal_epochs=True)).window.epoch_steps == 6


# --- plans ---


def test_only_plans_that_a_cursor_comes_to_soon_are_needed():
    stream = stream_of(4, spec=SAMPLED)
    needed = []
    stream.plans.trim = lambda cursors, is_needed: needed.append(is_needed)
    walks(stream.window, step=2)
    stream.trim_plans()
    (is_needed,) = needed
    assert [is_needed(position) for position in ((0, 1), (0, 2), (0, 200), (0, 1000))] == [False, True, True, False]


def test_a_stream_whose_order_is_arithmetic_has_no_plans_to_forget():
    stream = stream_of(4)
    assert not stream.is_planned
    assert stream.plans is None
    stream.trim_plans()
