"""Forks of a trainer: which of them serves, when one of a dead trainer ends, and when not yet."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.processes.process_exit import KILLED
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 13, 3)


def deliver_all_but(world: World, kept: str) -> None:
    while any(each[0] != kept for each in world.pending) or any(each.tasks for each in world.workers.values()):
        if any(each.tasks for each in world.workers.values()):
            world.work(0)
        else:
            world.deliver(next(at for at, each in enumerate(world.pending) if each[0] != kept))


@pytest.mark.parametrize("pickles", [True, False])
def test_it_ends_when_the_ring_is_full_and_it_has_said_what_it_is(pickles):
    """Found as a run of a second whose rerun found nothing: nobody could say what the batches were of."""
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, pickles=pickles)
    trainer.place(1, 0, 0, True)
    deliver_all_but(world, "identified")
    stream = world.engine.streams[trainer.stream]
    world.kill(trainer)
    deliver_all_but(world, "identified")
    world.tick()
    assert not stream.claims.has_work()
    assert stream.stage is Stage.RUNNING
    while world.pending:
        world.deliver(0)
    world.tick()
    assert stream.spec.is_identified
    assert stream.stage is Stage.PARKED
    assert stream.has_program == pickles
    assert not world.hosts


def left_cleanly(world: World, name: str):
    """A stream whose trainer has ended in order before its ring was full; its fork has said what it is."""
    trainer = world.join(SPEC, name, forks=True)
    trainer.place(1, 0, 0, True)
    while any(each[0] in ("identified", "asked") for each in world.pending) or not world.workers:
        world.deliver(0)
    stream = world.engine.streams[trainer.stream]
    world.goodbye(trainer)
    world.kill(trainer)
    assert stream.claims.has_work()
    assert stream.lingers
    return stream


def test_none_is_executed_for_a_trainer_that_has_ended_in_order():
    world = World(workers=1, slots=12)
    stream = left_cleanly(world, "s")
    for _ in range(3):
        world.now += 10
        world.tick()
    assert stream.coming is None
    assert stream.host is not None
    assert stream.host.is_fork
    world.come_to_rest()
    world.tick()
    assert stream.stage is Stage.PARKED
    assert stream.window.batches


def test_it_gives_way_to_the_next_trainer_when_its_own_has_ended_in_order():
    world = World(workers=1, slots=12)
    stream = left_cleanly(world, "s")
    ready = len(stream.window.batches)
    world.join(SPEC, "another", forks=True)
    world.come_to_rest()
    world.tick()
    assert stream.stage is Stage.PARKED
    assert ready <= len(stream.window.batches) <= ready + 2, "only what was under way came to it"


# --- memory is short ---


def orphaned(world: World, **options):
    """A stream with something to fill whose trainer is dead; its fork has said what it is."""
    trainer = world.join(SPEC, forks=True, **options)
    trainer.place(1, 0, 0, True)
    stream = world.engine.streams[trainer.stream]
    while world.pending or stream.window.ring is None or len(stream.window.batches) < 4:
        world.deliver(0) if world.pending else world.work(0)
    world.kill(trainer)
    assert stream.claims.has_work()
    assert stream.lingers
    return stream


def test_one_that_has_a_dead_trainer_s_memory_ends_first():
    world = World(workers=2, slots=12)
    stream = orphaned(world, pickles=False)
    world.engine.memory_is_short()
    world.run()
    world.come_to_rest()
    world.tick()
    assert stream.stage is Stage.PARKED
    assert not world.hosts
    assert stream.window.batches, "what was made stays"


def test_so_it_does_when_one_of_its_workers_was_killed_for_memory():
    world = World(workers=2, slots=12)
    stream = orphaned(world, pickles=False)
    worker = next(each for each in world.workers.values() if each.tasks)
    world._die(worker, 0, KILLED, oom_kills=1)
    world.run()
    world.come_to_rest()
    world.tick()
    assert stream.stage is Stage.PARKED
    assert not world.hosts


def test_a_large_program_is_written_for_others_when_there_is_room():
    world = World(workers=2, slots=12)
    stream = orphaned(world, large=True)
    for _ in range(2):
        # Since it is gone, and for long.
        world.now += 10
        world.tick()
    world.settle_first("program")
    assert stream.has_program
    world.tick()
    world.settle_first("loaded")
    assert stream.host is not None
    assert not stream.host.is_fork
    assert len(world.hosts) == 2, "the fork's workers are at their last tasks"
    world.come_to_rest()
    assert list(world.hosts) == [stream.host.number], "it ends with them"


def test_a_large_program_for_which_there_is_no_room_ends_with_its_fork():
    """It would lie in memory twice, beside the successor of a trainer that may have died for memory."""
    world = World(workers=2, slots=12)
    world.crowded = True
    stream = orphaned(world, large=True)
    for _ in range(2):
        # Since it is gone, and for long.
        world.now += 10
        world.tick()
    world.settle_first("program")
    world.come_to_rest()
    for _ in range(3):
        world.now += 10
        world.tick()
    assert stream.stage is Stage.PARKED
    assert not world.hosts
    assert not world.pending, "nobody is asked again"
    assert stream.window.batches


def test_a_large_program_for_which_there_is_no_room_is_anothers_fork_from_then_on():
    world = World(workers=2, slots=12)
    world.crowded = True
    first, second = (world.join(SPEC, shared=True, forks=True, large=True) for _ in range(2))
    for trainer in (first, second):
        world.settle_first("loaded")
        trainer.place(1, 0, 0, True)
    world.come_to_rest()
    second.activate(1)
    world.kill(first)
    for _ in range(2):
        # Since it is gone, and for long.
        world.now += 10
        world.tick()
    world.settle_first("program", "fork", "loaded", "identified")
    stream = world.engine.streams[second.stream]
    assert stream.host is not None
    assert stream.host.session == second.session


def test_a_large_one_that_dies_goes_on_from_its_spare():
    """Another fork of the trainer would have to look through all of its data first."""
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, large=True)
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    trainer.activate(1)
    trainer.next(1, hold=False)
    trainer.flush()
    trainer.fingerprint = CHANGED
    world.kill_zygote()
    world.come_to_rest()
    while not trainer.is_at_end(1):
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()
    assert trainer.failed is None


# --- a fork of a dataset that has changed ---

CHANGED = "f" * 32


def without_its_zygotes(world: World, trainer) -> None:
    """All that was forked of the trainer as it was is dead, and the trainer is asked for another fork."""
    while ("fork", trainer.session) not in world.pending:
        if world.zygotes():
            world.kill_zygote()
        else:
            world.deliver(0)
    deliver_all_but(world, "fork")


@pytest.mark.parametrize("order", [("loaded", "identified"), ("identified", "loaded")])
def test_one_of_another_dataset_makes_nothing_and_its_stream_fails_and_says_so(order):
    """Found as a next() that never returned, and workers that were started without end on a zygote that was dropped."""
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, pickles=False)
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    trainer.activate(1)
    without_its_zygotes(world, trainer)
    trainer.next(1, hold=False)
    trainer.flush()
    trainer.fingerprint = CHANGED
    world.settle_first("fork", order[0])
    assert not world.workers, "nothing is begun for the stream by what may be another program"
    world.settle_first(order[1])
    world.come_to_rest()
    assert "the dataset of stream 's' has been changed" in trainer.failed
    assert "Make the loader again" in trainer.failed
    assert not world.hosts
    assert not world.workers


def test_one_of_the_same_dataset_goes_on():
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, pickles=False)
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    trainer.activate(1)
    without_its_zygotes(world, trainer)
    trainer.next(1, hold=False)
    trainer.flush()
    world.settle_first("fork", "loaded")
    assert not world.workers
    world.settle_first("identified")
    assert world.workers
    world.come_to_rest()
    while not trainer.is_at_end(1):
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()
    assert trainer.failed is None


def test_another_trainer_of_a_shared_stream_whose_dataset_is_the_same_forks_instead():
    world = World(workers=2, slots=8)
    first, second = (world.join(SPEC, shared=True, forks=True, pickles=False) for _ in range(2))
    for trainer in (first, second):
        world.come_to_rest()
        trainer.place(1, 0, 0, True)
    world.come_to_rest()
    first.fingerprint = CHANGED
    without_its_zygotes(world, first)
    world.come_to_rest()
    assert first.failed is None
    assert second.failed is None
    assert world.hosts
    assert {world.fork_of[host] for host in world.hosts} == {second.session}


@pytest.mark.parametrize("dies_first", ["its fork", "it"])
def test_another_trainer_of_a_shared_stream_that_does_not_fork_hands_over_its_program_instead(dies_first):
    """Found by chaos: its next() failed, "it was never handed over", though it had a dataset to hand over."""
    world = World(workers=2, slots=4)
    first = world.join(SPEC, shared=True, forks=True, pickles=False)
    first.place(1, 0, 0, True)
    world.come_to_rest()
    second = world.join(SPEC, shared=True)
    second.place(1, 0, 0, True)
    second.activate(1)
    world.come_to_rest()
    if dies_first == "it":
        world.kill(first)
    while world.zygotes():
        world.kill_zygote()
    world.kill(first)
    while not second.is_at_end(1):
        world.come_to_rest()
        assert second.can_next(1), second.failed
        second.next(1, hold=False)
        second.flush()


def test_one_that_will_never_tell_what_it_is_serves_only_a_stream_that_is_as_unknown():
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, pickles=False)
    trainer.place(1, 0, 0, True)
    trainer.fingerprint = ""
    world.pending = [("identified", each[1], "") if each[0] == "identified" else each for each in world.pending]
    world.come_to_rest()
    stream = world.engine.streams[trainer.stream]
    assert stream.stage is Stage.RUNNING
    assert not stream.spec.is_identified
    world.kill(trainer)
    world.come_to_rest()
    world.tick()
    assert not world.hosts, "nobody waits for what it will not tell"


def test_one_that_will_never_tell_what_it_is_does_not_go_on_for_another():
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, pickles=False)
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    trainer.activate(1)
    without_its_zygotes(world, trainer)
    trainer.next(1, hold=False)
    trainer.flush()
    trainer.fingerprint = ""
    world.settle_first("fork")
    world.come_to_rest()
    assert "nobody can tell whether the dataset of stream 's' is still the same" in trainer.failed
    assert not world.workers
