"""Long waits are named by what they wait for, and again and again."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from prefetchd.daemon.engine.commands import NOBODY, ZYGOTE
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import LOADING, WorkerStatus
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 40, 4)
AFTER_S, AGAIN_S = 60.0, 30.0


class Waiter:
    """A trainer whose next() waits from now on."""

    def __init__(self, world: World, name: str = "s", **spec) -> None:
        self.world = world
        self.trainer = world.join(dataclasses.replace(SPEC, **spec), name)
        self.trainer.place(1, 0, 0, True)
        self.trainer.activate(1)
        self.trainer.wait(1)
        world.tick()

    @property
    def state(self):
        return self.world.engine.streams[self.trainer.stream]

    def after(self, seconds: float = AFTER_S + 1):
        """What was said of it after so long."""
        self.world.now += seconds
        del self.world.named[:]
        self.world.tick()
        found = [each for each in self.world.named if each.session == self.trainer.session]
        assert len(found) <= 1
        return found[0] if found else None


def deliver(world, *kinds):
    """Lets these things happen, and nothing else, until there are no more of them."""
    while True:
        found = next((at for at, each in enumerate(world.pending) if each[0] in kinds), None)
        if found is None:
            return
        world.deliver(found)


@pytest.fixture
def world():
    return World(2, 6)


# --- when ---


def test_a_wait_is_named_after_a_while_and_again_and_again(world):
    waiter = Waiter(world)
    assert waiter.after(AFTER_S - 1) is None
    assert waiter.after(1.5).waited_s == pytest.approx(AFTER_S + 0.5)
    assert waiter.after(1.0) is None
    assert waiter.after(AGAIN_S).waited_s == pytest.approx(AFTER_S + AGAIN_S + 1.5)
    assert waiter.after(4 * AGAIN_S) is not None
    assert waiter.after(1.0) is None, "what was missed is not made up for"


def test_a_wait_that_has_ended_is_not_named(world):
    waiter = Waiter(world)
    world.come_to_rest()
    waiter.trainer.next(1, hold=False)
    assert waiter.after() is None


def test_each_call_of_next_waits_for_itself(world):
    waiter = Waiter(world)
    waiter.after(AFTER_S - 1)
    waiter.trainer.wait(1)
    assert waiter.after(AFTER_S - 1) is None
    assert waiter.after(2).waited_s < AFTER_S + 2


def test_a_next_that_has_timed_out_waits_no_more(world):
    waiter = Waiter(world, timeout_s=70.0)
    assert waiter.after(61) is not None
    assert waiter.after(30) is None


def test_who_has_gone_does_not_wait(world):
    waiter = Waiter(world)
    world.kill(waiter.trainer)
    world.now += AFTER_S + 1
    world.tick()
    assert world.named == []


def test_each_trainer_is_told_of_its_own(world):
    one, other = Waiter(world, "one"), Waiter(world, "other")
    world.now += AFTER_S + 1
    world.tick()
    assert {each.session for each in world.named} == {one.trainer.session, other.trainer.session}


# --- why ---


def test_a_zygote_that_loads(world):
    told = Waiter(world).after()
    assert told.suspect == ZYGOTE
    assert "its zygote imports modules and loads the dataset, for 61 s" in told.cause


def test_a_trainer_that_has_yet_to_hand_over_its_dataset(world):
    world.engine.program_arrived = lambda session: None
    told = Waiter(world).after()
    assert told.suspect == NOBODY
    assert "the trainer with pid 1 has yet to hand over the dataset" in told.cause


def test_workers_that_start(world):
    waiter = Waiter(world)
    deliver(world, "loaded")
    told = waiter.after()
    assert told.cause == "its 2 workers are starting, for 61 s"
    assert told.suspect in world.workers
    assert "worker_init_fn" in told.knob


def test_a_planner_that_starts_and_one_whose_sampler_takes_its_time(world):
    waiter = Waiter(world, order="sampler")
    deliver(world, "loaded")
    assert waiter.after().cause == "its planner, which runs the sampler, is starting, for 61 s"
    deliver(world, "started")
    told = waiter.after()
    assert told.suspect == waiter.state.planner.number
    assert "what the sampler does before its next batch decides how long" in told.knob


def test_a_worker_at_the_first_batch(world):
    waiter = Waiter(world)
    deliver(world, "loaded", "started")
    told = waiter.after()
    (worker,) = [each for each in world.workers.values() if each.tasks]
    assert (told.suspect, told.at, told.cause) == (worker.number, (0, 0), "")
    assert "timeout=" in told.knob
    assert "num_workers=" in told.knob


def test_the_worker_that_has_been_at_it_for_longest(world):
    waiter = Waiter(world)
    deliver(world, "loaded", "started")
    world.work(0)
    deliver(world, "ring", "reserved")
    (stuck, other) = sorted(
        (each for each in world.workers.values() if each.tasks), key=lambda each: each.tasks[0].first
    )
    assert stuck.tasks[0].position == other.tasks[0].position == (0, 0)
    world.now += 5
    while other.tasks:
        world.work([each for each in world.workers.values() if each.tasks].index(other))
    told = waiter.after()
    assert told.suspect == stuck.number
    assert told.at == (0, 0)


def test_a_ring_that_is_being_made(world):
    waiter = Waiter(world)
    deliver(world, "loaded", "started")
    world.work(0)
    assert waiter.after().cause == "its ring for batches of 100 bytes is being made"


def test_workers_that_are_busy_with_other_streams(world):
    first = Waiter(world, "first")
    deliver(world, "loaded", "started")
    world.work(0)
    deliver(world, "ring", "reserved")
    assert first.state.window.ring is not None
    busy = [each for each in world.workers.values() if each.tasks]
    assert len(busy) == 2
    second = Waiter(world, "second")
    deliver(world, "loaded", "started")
    told = second.after()
    assert "2 workers may be busy at once, and all are, with other streams: 'first' (2)" in told.cause
    assert told.suspect in {each.number for each in busy}
    assert told.stream == first.trainer.stream, "that is where the suspect is to be looked for"
    assert "--workers" in told.knob


def test_workers_that_are_stuck_for_nobody_are_not_what_is_waited_for(world):
    first = Waiter(world, "first")
    deliver(world, "loaded", "started")
    world.work(0)
    deliver(world, "ring", "reserved")
    assert len([each for each in world.workers.values() if each.tasks]) == 2
    world.kill(first.trainer)
    second = Waiter(world, "second")
    deliver(world, "loaded")
    told = second.after()
    assert told.cause == "its 2 workers are starting, for 61 s"
    assert told.stream == second.trainer.stream


def test_a_suspect_that_waits_for_others(world):
    other = Waiter(world, "other")
    deliver(world, "loaded", "started")
    (stuck,) = [each for each in world.workers.values() if each.tasks]
    waiter = Waiter(world)
    deliver(world, "loaded", "started")
    for _ in range(2):
        (worker,) = [each for each in world.workers.values() if each.tasks and each is not stuck]
        world._die(worker, 0, ProcessExit.killed(signal.SIGSEGV), WorkerStatus(worker.tasks[0].number, LOADING, 0, 0))
        world.run()
        deliver(world, "started")
    assert waiter.state.claims.queue.has_suspect
    world.engine.waits._after_s = 10.0
    told = waiter.after(11.0)
    assert "a sample on which workers have died is to be made while nothing else runs" in told.cause
    assert (told.suspect, told.stream) == (stuck.number, other.trainer.stream)


def test_a_ring_that_is_full_of_held_batches(world):
    """Of a consumer that does not give offers back when it is asked to."""
    holder = Waiter(world)
    holder.trainer.deaf = True
    world.come_to_rest()
    holder.trainer.next(1, hold=True)
    holder.trainer.next(1, hold=True)
    world.come_to_rest()
    holder.trainer.place(2, 1, 0, True)
    holder.trainer.activate(2)
    holder.trainer.wait(2)
    world.come_to_rest()
    told = holder.after()
    assert told.cursor == 2
    assert "the ring is full: of its 6 slots 6 leased; the batch takes 1" in told.cause
    assert "Offered or handed out: pid 1 holds 6" in told.cause
    assert "raise buffer=" in told.knob


def test_a_batch_that_is_ready_and_not_taken(world):
    waiter = Waiter(world)
    world.come_to_rest()
    assert waiter.trainer.can_next(1)
    assert "the trainer has yet to read what it was told" in waiter.after().cause


def test_a_shard_that_begins_may_wait_for_other_workers():
    world = World(2, 6, by_rows=False, shards=[4, 4])
    waiter = Waiter(world, order="iterable", length=-1, logical_shards=2)
    deliver(world, *{each[0] for each in world.pending})
    deliver(world, *{each[0] for each in world.pending})
    named = waiter.after()
    assert named.cause.startswith(
        "shard 0 of 2 begins: it may wait at a barrier, or for a lock, that other workers have"
    )
