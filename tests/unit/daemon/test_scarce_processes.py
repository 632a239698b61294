"""No process can be had: streams go on with those that they have, it is tried again, and it is told."""

from __future__ import annotations

import itertools

import pytest

from prefetchd.daemon.engine.stream.failed_starts import LONGEST_PAUSE_S
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 13, 3)


def begun(**options) -> tuple:
    """A world in which no worker can be started any more; its stream has none."""
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True, **options)
    trainer.place(1, 0, 0, True)
    while any(each[0] != "loaded" for each in world.pending):
        world.deliver(next(at for at, each in enumerate(world.pending) if each[0] != "loaded"))
    world.scarce = True
    world.come_to_rest()
    assert not world.workers
    return world, trainer, world.engine.streams[trainer.stream]


def wait(world, seconds: float) -> None:
    world.now += seconds
    world.tick()
    world.come_to_rest()


@pytest.mark.parametrize("options", [{}, {"pickles": False}, {"large": True}])
def test_workers_are_started_when_processes_can_be_had_again(options):
    world, trainer, stream = begun(**options)
    assert stream.stage is Stage.RUNNING
    for _ in range(2):
        wait(world, LONGEST_PAUSE_S)
    assert trainer.failed is None
    assert stream.failed_starts.count == 3
    world.scarce = False
    wait(world, LONGEST_PAUSE_S)
    assert len(world.workers) == 2
    assert stream.failed_starts.count == 0
    trainer.activate(1)
    while not trainer.is_at_end(1):
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()


def test_it_is_not_tried_at_once_and_less_often_each_time():
    world, _, stream = begun()
    tried = []
    for _ in range(100):
        before = stream.failed_starts.count
        wait(world, 0.25)
        if stream.failed_starts.count > before:
            tried.append(world.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[-1] <= LONGEST_PAUSE_S + 0.25


def test_what_has_a_worker_goes_on_with_that():
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, forks=True)
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    world.scarce = True
    world.kill_worker(0)
    trainer.activate(1)
    while not trainer.is_at_end(1):
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()
    assert len(world.workers) == 1


def test_a_program_that_is_kept_is_loaded_by_another_zygote_in_the_end():
    """Where a fork of a large trainer is too much for the machine's memory, and a fork of another is not."""
    world, _, stream = begun()
    for _ in range(3):
        assert stream.coming is None
        wait(world, LONGEST_PAUSE_S)
    assert stream.host is not None
    assert stream.host.is_fork, "no zygote can be had either"
    world.scarce = False
    wait(world, LONGEST_PAUSE_S)
    assert len(world.workers) == 2


def test_a_zygote_that_cannot_be_started_is_started_when_it_can():
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC)
    world.scarce = True
    trainer.place(1, 0, 0, True)
    world.pending = [("not loaded", each[1]) if each[0] == "loaded" else each for each in world.pending]
    world.come_to_rest()
    stream = world.engine.streams[trainer.stream]
    assert stream.stage is Stage.PARKED
    for _ in range(20):
        wait(world, LONGEST_PAUSE_S)
    assert trainer.failed is None, "it does not die again and again"
    world.scarce = False
    wait(world, LONGEST_PAUSE_S)
    assert stream.stage is Stage.RUNNING


def test_a_planner_is_started_when_it_can_be():
    world = World(workers=2, slots=4, planned=True)
    trainer = world.join(StreamSpec("0" * 32, 0, "sampler", 13, 3), forks=True)
    trainer.place(1, 0, 0, True)
    world.scarce = True
    world.come_to_rest()
    assert not world.planners
    assert trainer.failed is None
    world.scarce = False
    wait(world, LONGEST_PAUSE_S)
    assert world.planners


def test_a_wait_says_why():
    world, trainer, _ = begun()
    trainer.activate(1)
    trainer.wait(1)
    wait(world, 61.0)
    assert "no process can be started for it: Resource temporarily unavailable" in world.named[-1].cause
    assert "ulimit -u" in world.named[-1].knob
