"""The rules of the pool, one by one, in a world whose workers do what a test says."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.commands import StopWorker
from prefetchd.daemon.engine.pool.busy_limit import BusyLimit
from prefetchd.daemon.engine.pool.pool import RING_COMES_WITHIN_S
from prefetchd.daemon.engine.stream.shard_begins import ALONE_S, SHARED_S
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.wire.messages import BEGIN, MEASURE
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import KILLED, World

SPEC = StreamSpec("0" * 32, 0, "sequential", 240, 4)


def stream_of(world: World, name: str = "s", **spec) -> StreamState:
    """A stream whose trainer has begun an epoch, as soon as its workers are ready."""
    trainer = world.join(dataclasses.replace(SPEC, fingerprint=f"{ord(name):032x}", **spec), name)
    trainer.place(1, 0, 0, False)
    arrive(world)
    return world.engine.streams[trainer.stream]


def arrive(world: World) -> None:
    """All that was started is there."""
    while world.pending:
        world.deliver(0)


def busy(world: World, stream: StreamState | None = None) -> list[int]:
    """The numbers of the workers that have tasks, of one stream or of all."""
    return sorted(
        worker.number
        for worker in world.workers.values()
        if worker.tasks and (stream is None or worker.stream == stream.number)
    )


def measuring(world: World) -> int | None:
    """The place among the busy workers of one that measures."""
    kinds = [worker.tasks[0].kind for worker in world.workers.values() if worker.tasks]
    return kinds.index(MEASURE) if MEASURE in kinds else None


def has_ring(world: World) -> None:
    """All streams have measured, and have their rings."""
    while (at := measuring(world)) is not None:
        world.work(at)
    arrive(world)


def test_rule_1_a_stream_has_the_workers_that_its_loader_has_asked_for():
    world = World(workers=4)
    assert len(stream_of(world, "a", workers=3).workers) == 3
    assert len(stream_of(world, "b", workers=1).workers) == 1


def test_rule_2_a_limit_bounds_the_busy_workers_of_all_streams_together():
    world = World(workers=3, slots=8)
    streams = [stream_of(world, name, workers=3) for name in "abc"]
    has_ring(world)
    assert sum(len(stream.workers) for stream in streams) == 9
    assert len(busy(world)) == 3


def test_without_a_limit_all_workers_may_be_busy():
    world = World(workers=3, slots=8)
    world.engine.pool._limit = BusyLimit(0)
    for name in "ab":
        stream_of(world, name, workers=3)
    has_ring(world)
    assert len(busy(world)) == 6


def test_before_its_first_batch_is_filled_a_worker_has_one_task_at_a_time():
    world = World(workers=2, slots=8)
    stream = stream_of(world, workers=2)
    has_ring(world)
    assert not stream.task_sizes.row_s
    assert [len(worker.tasks) for worker in world.workers.values()] == [1, 1]
    while not stream.task_sizes.row_s:
        world.work(0)
    world.work(0)
    assert max(len(worker.tasks) for worker in world.workers.values()) > 1, "the next one waits in its socket"


def test_rule_5_who_has_measured_keeps_its_turn_until_it_has_its_ring():
    world = World(workers=1, slots=40)
    slow = stream_of(world, "a", workers=1)
    has_ring(world)
    measured = stream_of(world, "b", workers=1)
    while measured.measured_s is None:
        # Tasks take time: what a stream has had of it decides whose turn it is.
        world.now += 0.001
        world.work(0)
    for _ in range(10):
        if busy(world):
            world.now += 0.001
            world.work(0)
    assert busy(world) == [], "the other one would keep it waiting"
    assert slow.claims.has_work()
    world.now += RING_COMES_WITHIN_S
    world.tick()
    assert busy(world) == sorted(slow.workers)


def test_nothing_is_begun_once_the_daemon_is_about_to_stop():
    world = World(workers=2)
    stream_of(world)
    assert [task.kind for worker in world.workers.values() for task in worker.tasks] == [MEASURE]
    world.engine.finish()
    while busy(world):
        world.work(0)
    arrive(world)
    assert not world.engine.is_busy


def test_rule_4_workers_of_a_tuned_stream_come_as_they_are_wanted():
    world = World(workers=4, slots=8)
    world.engine.pool._limit = BusyLimit(0)
    stream = stream_of(world)
    has_ring(world)
    world.engine.tune(stream.number, 6)
    world.run()
    arrive(world)
    assert len(busy(world, stream)) == 6


def test_rule_4_those_beyond_end_with_their_tasks_and_the_others_go_on():
    world = World(workers=4, slots=8)
    stream = stream_of(world)
    has_ring(world)
    begun = {number: list(worker.tasks) for number, worker in world.workers.items()}
    world.engine.tune(stream.number, 1)
    world.run()
    assert all(begun.values()), "all are busy"
    assert len(world.workers) == 4, "none is ended in its task"
    made = stream.counters.batches
    while busy(world):
        world.work(0)
        arrive(world)
    assert [worker.worker_index for worker in stream.workers.values()] == [0]
    assert stream.counters.batches > made + 4, "the last one goes on"


def test_rule_4_an_idle_one_ends_at_once():
    world = World(workers=3, slots=1)
    stream = stream_of(world)
    has_ring(world)
    world.come_to_rest()
    assert not busy(world)
    world.engine.tune(stream.number, 2)
    world.run()
    arrive(world)
    assert len(stream.workers) == 2


# --- shards that begin together ---


def shards_of(world: World, shards: int, **spec) -> StreamState:
    stream = stream_of(world, order="iterable", length=-1, logical_shards=shards, **spec)
    arrive(world)
    return stream


def beginnings(world: World) -> dict[int, list[tuple[int, int]]]:
    """By worker, the positions at which it is to begin a shard, in order."""
    found = {
        worker.number: [(task.epoch, task.step) for task in worker.tasks if task.kind == BEGIN]
        for worker in world.workers.values()
    }
    return {number: positions for number, positions in found.items() if positions}


def works(world: World, number: int) -> None:
    """The worker does its next task."""
    busy = [worker.number for worker in world.workers.values() if worker.tasks]
    world.work(busy.index(number))


@pytest.mark.parametrize("limit", [1, 3])
def test_all_shards_begin_before_the_first_batch_is_measured(limit):
    world = World(workers=limit, slots=1, by_rows=False, shards=[2, 2, 2])
    stream = shards_of(world, 3)
    assert sorted(beginnings(world).values()) == [[(0, 0)], [(0, 1)], [(0, 2)]]
    assert len(stream.workers) == 3
    kinds = [task.kind for worker in world.workers.values() for task in worker.tasks]
    assert kinds.count(MEASURE) == 1


def begun_and_killed(world: World) -> tuple[StreamState, int, int]:
    """A stream of two shards that have begun, one of whose workers has died since; and both workers' numbers."""
    stream = shards_of(world, 2)
    first, second = sorted(world.workers)
    for number in (first, second):
        works(world, number)
    has_ring(world)
    world.kill_worker(sorted(world.workers).index(second))
    arrive(world)
    (other,) = set(world.workers) - {first}
    return stream, first, other


def test_a_shard_that_begins_alone_is_followed_by_the_others_after_some_time():
    world = World(workers=2, slots=2, by_rows=False, shards=[50, 50])
    _, first, other = begun_and_killed(world)
    while world.workers[first].tasks:
        works(world, first)
    assert list(beginnings(world)) == [other]
    world.now += ALONE_S + 1
    world.tick()
    again = beginnings(world)
    assert sorted(again) == [first, other]
    assert [task.slot for task in world.workers[first].tasks if task.kind == BEGIN] == [1], "it begins anew"
    world.now += ALONE_S + 1
    world.tick()
    assert beginnings(world) == again, "once"


def test_a_shard_that_begins_for_the_first_time_may_take_long():
    world = World(workers=2, slots=2, by_rows=False, shards=[50, 50])
    shards_of(world, 2)
    first, second = sorted(world.workers)
    works(world, first)
    world.now += 10 * ALONE_S
    world.tick()
    assert list(beginnings(world)) == [second]


def test_shards_that_share_a_worker_and_do_not_begin_fail_with_both_numbers():
    world = World(workers=2, slots=2, by_rows=False, shards=[50, 50])
    world.engine.pool._limit = BusyLimit(0)
    world.engine.pool._limit.lower(2, world.now)
    stream = shards_of(world, 2)
    assert len(stream.workers) == 1
    assert [len(each) for each in beginnings(world).values()] == [2]
    world.now += SHARED_S - 1
    world.tick()
    assert stream.failure is None
    world.now += 2
    world.tick()
    assert stream.failure is not None
    assert "2 shards" in stream.failure[1]
    assert "allowed: 1 workers" in stream.failure[1]


def test_a_worker_that_is_to_end_and_does_not_begin_is_killed():
    world = World(workers=2, slots=2, by_rows=False, shards=[50, 50])
    stream = shards_of(world, 2)
    first, second = sorted(world.workers)
    works(world, first)
    world.engine.pool._stop(world.engine.pool.workers[second])
    world.now += ALONE_S - 1
    world.tick()
    assert second in world.engine.pool.workers
    world.now += 2
    world.engine.tick(world.now)
    assert StopWorker(second, kill=True) in world.engine.take_commands()
    world.engine.worker_died(second, KILLED, world.now)
    arrive(world)
    assert stream.begins is not None
    assert not stream.begins._deaths, "that is no death of its own"
    assert (0, 1) in stream.begins.wanted
