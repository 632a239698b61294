"""A stream's zygote that dies while its workers start: one death, however many there were."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from prefetchd.processes.process_exit import KILLED, MOST_DEATHS, MOST_KILLS, ORPHANED, UNEXPLAINED, ProcessExit
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import NO_WORKER_STATUS
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 13, 3)
WORKERS = 8
SEGFAULT = ProcessExit.killed(signal.SIGSEGV)


@pytest.mark.parametrize("how", [ORPHANED, UNEXPLAINED])
@pytest.mark.parametrize(("ends", "times"), [(SEGFAULT, MOST_DEATHS), (KILLED, MOST_KILLS), (UNEXPLAINED, MOST_KILLS)])
def test_it_is_started_again_more_often_when_somebody_else_kills_it(how, ends, times):
    world = World(workers=WORKERS)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    for _ in range(times):
        world.deliver(0)  # it has loaded; workers are started
        assert len(world.workers) == WORKERS
        for number in list(world.workers):
            del world.workers[number]
            world.engine.worker_died(number, how, world.now, NO_WORKER_STATUS)
        world.pending.clear()
        world.engine.host_died(world.hosts.popitem()[0], ends)
        world.run()
        assert trainer.failed is None
    world.engine.host_died(world.hosts.popitem()[0], ends)
    world.run()
    assert "dies again and again" in trainer.failed


def test_a_batch_that_was_made_begins_the_count_anew():
    world = World(workers=WORKERS)
    trainer = world.join(dataclasses.replace(SPEC, length=3000))
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    trainer.activate(1)
    for _ in range(2 * MOST_DEATHS):
        assert trainer.can_next(1)
        for number in list(world.workers):
            del world.workers[number]
            world.engine.worker_died(number, ORPHANED, world.now, NO_WORKER_STATUS)
        world.pending.clear()
        world.engine.host_died(world.hosts.popitem()[0], SEGFAULT)
        world.run()
        trainer.next(1, hold=False)
        trainer.flush()
        world.come_to_rest()
    assert trainer.failed is None


def test_workers_that_die_of_themselves_are_given_up():
    world = World(workers=MOST_DEATHS + 1)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    world.deliver(0)
    for number in list(world.workers):
        del world.workers[number]
        world.engine.worker_died(number, ProcessExit.exited(3), world.now, NO_WORKER_STATUS)
    world.run()
    assert "4 workers in a row died before they were ready: exited with 3" in trainer.failed
