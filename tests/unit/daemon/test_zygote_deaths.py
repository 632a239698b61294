"""A stream's zygote that dies while its workers start: one death, however many there were."""

from __future__ import annotations

import pytest

from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.backend import ORPHANED, UNEXPLAINED
from prefetchd.workers.note import NO_NOTE
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 13, 3)
WORKERS = 8


@pytest.mark.parametrize("how", [ORPHANED, UNEXPLAINED])
def test_it_is_started_again_three_times(how):
    world = World(workers=WORKERS)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    for _ in range(3):
        world.deliver(0)  # it has loaded; workers are started
        assert len(world.workers) == WORKERS
        for number in list(world.workers):
            del world.workers[number]
            world.engine.worker_died(number, how, world.now, NO_NOTE)
        world.pending.clear()
        world.engine.host_died(trainer.stream, "killed by SIGKILL")
        world.run()
        assert trainer.failed is None
    world.settle()
    trainer.activate(1)
    assert trainer.can_next(1)


def test_workers_that_die_of_themselves_are_given_up():
    world = World(workers=3)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    world.deliver(0)
    for number in list(world.workers):
        del world.workers[number]
        world.engine.worker_died(number, "exited with 3", world.now, NO_NOTE)
    world.run()
    assert "3 workers in a row died before they were ready: exited with 3" in trainer.failed
