"""Streams without a consumer give way: their processes, their place among the busy, their memory."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.registry import COME_BACK_WITHIN_S
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.ring.policy import SlotState
from prefetchd.wire.messages import Refused
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import SLOT_BYTES, World

SPEC = StreamSpec("0" * 32, 0, "sequential", 40, 4)


class Recorder(World):
    """A world that keeps what it was commanded."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.commanded = []

    def _run(self, command):
        self.commanded.append(command)
        super()._run(command)

    def took(self, kind):
        found = [command for command in self.commanded if isinstance(command, kind)]
        self.commanded = []
        return found

    def visit(self, name):
        """A trainer that comes, and goes when its ring is full."""
        trainer = self.join(SPEC, name)
        trainer.place(1, 0, 0, True)
        self.come_to_rest()
        self.goodbye(trainer)
        self.kill(trainer)
        self.now += 1
        return self.stream_of[name]

    def stage(self, number):
        return self.engine.streams[number].stage


def consume(world, trainer, steps):
    world.come_to_rest()
    for _ in range(steps):
        trainer.next(1, hold=False)
        world.come_to_rest()


# --- processes ---


def test_of_the_full_rings_without_a_consumer_only_the_last_keeps_its_processes():
    world = Recorder()
    numbers = [world.visit(name) for name in ("one", "two", "three")]
    world.tick()
    assert [command.stream for command in world.took(c.ParkStream)] == numbers[:2]
    assert [world.stage(number) for number in numbers] == [Stage.PARKED, Stage.PARKED, Stage.RUNNING]
    assert {worker.stream for worker in world.workers.values()} == {numbers[2]}
    assert {worker.stream.number for worker in world.engine.pool.workers.values()} == {numbers[2]}
    world.tick()
    assert not world.took(c.ParkStream)


def test_a_parked_stream_serves_what_it_has_and_gets_processes_when_it_needs_more():
    world = Recorder(slots=4)
    world.visit("one")
    world.visit("two")
    world.tick()
    trainer = world.join(SPEC, "one")
    trainer.place(1, 0, 0, True)
    assert world.stage(1) is Stage.PARKED
    trainer.activate(1)
    assert [each.stream for each in world.took(c.StartStream)] == [1, 2], "those of the two visits"
    consume(world, trainer, 10)
    assert [each.stream for each in world.took(c.StartStream)] == [1]
    assert world.stage(1) is Stage.RUNNING


def test_a_ring_that_is_still_being_filled_keeps_its_processes():
    world = Recorder()
    for name in ("one", "two"):
        trainer = world.join(SPEC, name)
        trainer.place(1, 0, 0, True)
        while any(kind != "started" for kind, *_ in world.pending):
            world.deliver(0)
        world.kill(trainer)
    world.tick()
    assert not world.took(c.ParkStream)


def made(world: World) -> list[tuple[int, int]]:
    """The positions of all batches that are ready, ahead of everybody."""
    world.come_to_rest()
    return sorted(world.engine.streams[1].window.batches)


@pytest.mark.parametrize(
    ("taken", "ready"),
    [
        (3, [(0, step) for step in range(9)]),
        (8, [*((0, step) for step in range(6)), (0, 8), (0, 9), *((1, step) for step in range(4))]),
        (10, [*((0, step) for step in range(6)), *((1, step) for step in range(6))]),
    ],
    ids=["early", "late", "at an epoch's end"],
)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_a_ring_fills_on_for_a_trainer_that_goes_on_and_for_one_that_begins_again(clean, taken, ready):
    world = World(1, 12)
    trainer = world.join(SPEC, "s")
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest()
    for _ in range(taken):
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()
    if taken == 10:
        trainer.close(1)
        trainer.place(2, 1, 0, True)
    if clean:
        world.goodbye(trainer)
    world.kill(trainer)
    assert set(ready) <= set(made(world))


@pytest.mark.parametrize("step", [0, 3])
def test_whoever_comes_has_all_of_the_ring(step):
    world = World(1, 12)
    trainer = world.join(SPEC, "s")
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest()
    for _ in range(3):
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()
    world.kill(trainer)
    world.come_to_rest()
    made_before = world.engine.streams[1].counters.batches
    later = world.join(SPEC, "s")
    later.place(1, 0, step, True)
    later.activate(1)
    for _ in range(6):
        assert later.cursors[1].offers, "its half is ready"
        later.next(1, hold=False)
        later.flush()
    assert world.engine.streams[1].counters.batches == made_before
    later.place(2, 1, 0, True)
    world.come_to_rest()
    ring = world.engine.streams[1].window.ring
    assert ring.count(SlotState.FREE) == ring.count(SlotState.FILLING) == 0


# --- the workers' limit ---


def test_a_task_of_a_stream_without_a_consumer_holds_up_nobody_else():
    """It may never end."""
    world = World(workers=1)
    gone = world.join(SPEC, "gone")
    gone.place(1, 0, 0, True)
    while not any(worker.tasks for worker in world.workers.values()):
        world.deliver(0)
    hung = next(worker for worker in world.workers.values() if worker.tasks)
    stays = world.join(SPEC, "stays")
    stays.place(1, 0, 0, False)
    while world.pending:
        world.deliver(0)
    assert [worker for worker in world.workers.values() if worker.tasks] == [hung], "one may be busy at a time"
    world.kill(gone)
    assert any(worker.tasks for worker in world.workers.values() if worker is not hung)


# --- memory ---


def test_a_ring_without_a_consumer_yields_its_memory_the_soonest_to_end_first():
    world = Recorder(memory_slots=12)
    for name in ("one", "two", "three"):
        world.visit(name)
    assert not world.took(c.DropStream)
    trainer = world.join(SPEC, "four")
    trainer.place(1, 0, 0, False)
    consume(world, trainer, 2)
    assert world.took(c.DropStream) == [c.DropStream(1)]
    assert sorted(world.engine.streams) == [2, 3, 4]


def test_nothing_is_dropped_when_that_would_not_do():
    world = Recorder(memory_slots=7)
    world.visit("one")
    stays = world.join(SPEC, "one")
    trainer = world.join(SPEC, "two")
    trainer.place(1, 0, 0, False)
    world.come_to_rest()
    assert trainer.failed == "no_space: no room"
    assert not world.took(c.DropStream)
    assert stays.failed is None


def wide_batch(world):
    """A trainer whose third batch takes five slots, which the ring of four does not have yet."""
    world.sizes[0, 2] = 5 * SLOT_BYTES
    trainer = world.join(StreamSpec("0" * 32, 0, "sequential", 40, 4, buffer_batches=4), "wide")
    trainer.place(1, 0, 0, False)
    return trainer


def test_a_ring_that_grows_takes_the_memory_of_one_without_a_consumer():
    world = Recorder(slots=4, by_rows=False, memory_slots=12)
    world.visit("one")
    trainer = wide_batch(world)
    consume(world, trainer, 10)
    assert world.took(c.DropStream) == [c.DropStream(1)]
    assert world.engine.streams[2].window.ring.reserved >= 10


def test_a_ring_that_cannot_grow_stays_as_it_is_and_what_does_not_fit_fails_by_itself():
    world = World(slots=4, by_rows=False, memory_slots=4)
    trainer = wide_batch(world)
    world.come_to_rest()
    for _ in range(2):
        trainer.next(1, hold=False)
        world.come_to_rest()
    error = decode_exception(trainer.cursors[1].offers[2])
    assert error.type_name == "BatchTooLargeError"
    assert "epoch 0, step 2 takes 500 bytes; allowed: the 400 bytes of its ring" in error.message
    assert error.message.endswith("which cannot grow: no room")
    consume(world, trainer, 8)
    assert world.engine.streams[1].counters.failed == 1
    assert trainer.failed is None


def test_a_ring_without_even_the_smallest_number_of_slots_fails():
    world = World(slots=4)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, False)
    while ("reserved", 1) not in world.pending:
        world.deliver(0) if world.pending else world.work(0)
    world.engine.ring_reserved(1, 3)
    world.engine.ring_short(1, 4, 3, "shared memory is full", SLOT_BYTES)
    world.run()
    assert trainer.failed == "no_space: shared memory is full"


# --- which one ---

OTHER = dataclasses.replace(SPEC, fingerprint="1" * 32)


@pytest.mark.parametrize("comes_first", [SPEC, OTHER], ids=["in order", "in another order"])
def test_loaders_that_nobody_named_find_what_was_left_by_such_a_loader(comes_first):
    world = Recorder()
    left = [world.join(spec, "train.py:0") for spec in (SPEC, OTHER)]
    rings = {trainer.stream for trainer in left}
    for trainer in left:
        trainer.place(1, 0, 0, True)
        world.kill(trainer)
    for spec in (comes_first, OTHER if comes_first is SPEC else SPEC):
        found = world.engine.streams[world.join(spec, "train.py:0").stream]
        assert found.spec.fingerprint == spec.fingerprint
        assert found.number in rings
    assert not world.took(c.DropStream)


def test_a_stream_that_somebody_named_is_no_other_than_that():
    world = Recorder()
    left = [world.join(spec, "train.py:0") for spec in (SPEC, OTHER)]
    for trainer in left:
        world.kill(trainer)
    assert world.engine.streams[world.join(OTHER, "train.py:0", shared=True).stream].name == "train.py:0"
    assert len(world.took(c.DropStream)) == 1


# --- who is told ---


def shared_before_the_program(world):
    world.engine.program_arrived = lambda session: None
    first, second = world.join(SPEC, shared=True), world.join(SPEC, shared=True)
    del world.engine.program_arrived
    return first, second


def test_who_waits_for_another_s_program_is_asked_for_its_own():
    world = Recorder()
    first, second = shared_before_the_program(world)
    world.commanded = []
    world.kill(first)
    (asked,) = [command for command in world.commanded if isinstance(command, c.Send)]
    assert asked.session == second.session
    assert asked.message.program_wanted
    assert world.engine.streams[1].stage is Stage.LOADING, "it has handed it over"


def test_who_attached_to_a_stream_by_its_name_is_told_that_no_program_will_come():
    world = Recorder()
    world.engine.program_arrived = lambda session: None
    first = world.join(SPEC, shared=True)
    attached = first.session + 1
    world.engine.hello(attached, dataclasses.replace(first.hello, spec=b""), world.now)
    world.run()
    world.commanded = []
    world.kill(first)
    (told,) = [command for command in world.commanded if isinstance(command, c.Send)]
    assert told.session == attached
    assert isinstance(told.message, Refused)
    assert not world.engine.streams


def test_whose_program_is_awaited_stays_when_another_leaves():
    world = World()
    first, second = shared_before_the_program(world)
    world.kill(second)
    assert list(world.engine.streams) == [1]
    third = world.join(SPEC, shared=True)
    stream = world.engine.streams[1]
    assert stream.requests.is_asked(first.session)
    assert not stream.requests.is_asked(third.session)
    world.engine.program_arrived(first.session)
    assert stream.stage is Stage.LOADING
    assert not stream.requests.is_asked(first.session), "once"


def test_who_was_asked_may_deliver_once_though_another_was_faster():
    """The fork of one trainer writes its program while another trainer, which cannot fork, sends the same."""
    world = World()
    first, _ = shared_before_the_program(world)
    stream = world.engine.streams[1]
    world.engine.program_kept(stream.number)
    assert stream.has_program
    assert stream.requests.is_asked(first.session), "it is on its way, and no error"
    world.engine.program_arrived(first.session)
    assert not stream.requests.is_asked(first.session)


@pytest.mark.parametrize("forks", [False, True], ids=["executed", "forked"])
def test_who_does_not_come_back_in_time_is_not_waited_for(forks):
    """Nor does it take anything else to happen: nobody may have anything to say. Who has come back hands over a fork of
    itself: found by chaos, what was ready for the other gave way to what that one filled."""
    world = World(slots=8)
    first, second = (world.join(SPEC, shared=True, forks=forks) for _ in range(2))
    for trainer in (first, second):
        trainer.place(1, 0, 0, True)
        trainer.activate(1)
    world.come_to_rest()
    world.crash()
    world.former_workers_die()
    world.reconnect(second)
    world.come_to_rest()
    while second.can_next(1):
        second.next(1, hold=False)
        world.come_to_rest()
    second.wait(1)
    world.come_to_rest()
    assert not second.can_next(1), "while others may come back nothing is filled"
    world.now += COME_BACK_WITHIN_S
    world.tick()
    world.come_to_rest()
    assert second.can_next(1)
