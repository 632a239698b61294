"""What an operator asks of streams, in a world without processes."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import Refused
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 400, 4)
OTHER = dataclasses.replace(SPEC, fingerprint="1" * 32)


def running(world: World, name: str = "s", spec: StreamSpec = SPEC):
    """A trainer of a stream whose ring is full."""
    trainer = world.join(spec, name)
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest()
    return trainer


def take_all(trainer) -> int:
    taken = 0
    while trainer.can_next(1):
        trainer.next(1, hold=False)
        taken += 1
    trainer.flush()
    return taken


def test_a_paused_stream_serves_what_is_ready_and_fills_nothing():
    world = World()
    trainer = running(world)
    assert world.engine.pause("s") == ["s"]
    assert take_all(trainer) > 0
    world.come_to_rest()
    assert not trainer.can_next(1)
    assert not any(worker.tasks for worker in world.workers.values())
    assert world.workers
    assert world.engine.resume("s") == ["s"]
    world.run()
    world.come_to_rest()
    assert trainer.can_next(1)


def test_tasks_that_are_under_way_end_in_a_pause():
    world = World()
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    while not any(worker.tasks for worker in world.workers.values()):
        world.deliver(0)
    world.engine.pause("")
    world.come_to_rest()
    assert not world.engine.is_busy


def test_other_streams_go_on():
    world = World()
    held, free = running(world, "held"), running(world, "free", OTHER)
    world.engine.pause("held")
    take_all(held)
    take_all(free)
    world.come_to_rest()
    assert not held.can_next(1)
    assert free.can_next(1)


def test_a_drained_stream_has_no_processes_until_it_is_resumed():
    world = World()
    trainer = running(world)
    stream = world.engine.streams[trainer.stream]
    assert world.engine.drain("s") == ["s"]
    world.run()
    assert (stream.stage, world.workers) == (Stage.PARKED, {})
    assert take_all(trainer) > 0
    world.come_to_rest()
    world.tick()
    assert stream.stage is Stage.PARKED
    world.engine.resume("")
    world.run()
    assert stream.stage is Stage.LOADING
    world.come_to_rest()
    assert trainer.can_next(1)


def test_a_stream_that_drains_waits_for_its_tasks():
    world = World()
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    while not any(worker.tasks for worker in world.workers.values()):
        world.deliver(0)
    stream = world.engine.streams[trainer.stream]
    world.engine.drain("s")
    world.run()
    assert stream.stage is Stage.RUNNING
    world.come_to_rest()
    world.tick()
    assert (stream.stage, world.workers) == (Stage.PARKED, {})


def test_a_long_wait_on_a_paused_stream_is_named_so():
    world = World()
    trainer = running(world)
    world.engine.pause("s")
    take_all(trainer)
    trainer.wait(1)
    world.now += 61
    world.tick()
    (named,) = world.named
    assert "paused" in named.cause
    assert "prefetchd resume s" in named.knob


@pytest.mark.parametrize("verb", ["pause", "resume", "drain"])
def test_without_a_name_all_are_meant_and_an_unknown_name_is_an_error(verb):
    world = World()
    running(world, "one"), running(world, "two", OTHER)
    world.engine.pause("")
    assert getattr(world.engine, verb)("") == ["one", "two"]
    with pytest.raises(CallerError, match=r"no stream 'three'; there are: 'one', 'two'"):
        getattr(world.engine, verb)("three")


def test_only_what_was_paused_is_resumed():
    world = World()
    running(world)
    assert world.engine.resume("") == []


def test_a_stream_in_use_is_evicted_by_force_alone():
    world = World()
    trainer = running(world)
    with pytest.raises(CallerError, match=r"in use by pid 1; .*--force"):
        world.engine.evict("s", force=False)
    assert world.engine.evict("s", force=True) == ["s"]
    commands = world.engine.take_commands()
    told = [each.message for each in commands if isinstance(each, c.Send)]
    assert [type(each) for each in told] == [Refused]
    assert "evicted" in told[0].message
    assert c.DropStream(trainer.stream) in commands


def test_a_lingering_stream_is_evicted_without_more_ado():
    world = World()
    trainer = running(world)
    world.goodbye(trainer)
    world.kill(trainer)
    assert world.engine.evict("s", force=False) == ["s"]
    world.run()
    assert not world.engine.streams


def test_evicting_wants_a_name():
    with pytest.raises(CallerError, match="name of one stream"):
        World().engine.evict("", force=True)


def test_a_daemon_that_finishes_begins_no_task():
    world = World()
    trainer = running(world)
    world.engine.finish()
    take_all(trainer)
    world.come_to_rest()
    assert not world.engine.is_busy
    assert not trainer.can_next(1)


# --- after a restart ---


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_stream_held_before_the_restart_is_held_when_it_comes(is_drained):
    world = World(2, 4)
    world.engine.hold({"s": is_drained, "never": False})
    trainer = world.join(SPEC, "s")
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest(waits=False)
    stream = world.engine.streams[trainer.stream]
    assert stream.paused
    assert not stream.counters.batches
    assert world.engine.held == {"s": is_drained, "never": False}
    assert world.engine.resume("s") == ["s"]
    world.run()
    world.come_to_rest()
    assert stream.counters.batches
    assert world.engine.held == {"never": False}


@pytest.mark.parametrize("name", ["never", ""])
def test_a_hold_is_taken_back_before_its_stream_comes(name):
    world = World(2, 4)
    world.engine.hold({"never": False})
    world.engine.resume(name)
    assert world.engine.held == {}
