"""What a worker has made to measure a stream is not made again by another one."""

from __future__ import annotations

import pytest

from prefetchd.wire.messages import MEASURE
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 100, 4)


def begun(workers: int = 3):
    """A stream whose workers are all ready, and of whose first batch one has measured the first sample."""
    world = World(workers=workers, slots=4)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, False)
    while world.pending:
        # The worker that has come last is ready first: not the one that everything else is offered to first.
        starting = [at for at, event in enumerate(world.pending) if event[0] == "started"]
        world.deliver(starting[-1] if starting else 0)
    (measuring,) = [worker for worker in world.workers.values() if worker.tasks]
    assert measuring.tasks[0].kind == MEASURE
    return world, trainer, measuring


def has_first_row(worker) -> bool:
    return any((task.position, task.first) == ((0, 0), 0) for task in worker.tasks)


def test_the_first_rows_go_to_the_worker_that_measured():
    """Found as 401 samples of 400."""
    world, trainer, measuring = begun()
    world.work([each for each in world.workers.values() if each.tasks].index(measuring))
    while world.pending:
        world.deliver(0)
    assert [worker.number for worker in world.workers.values() if has_first_row(worker)] == [measuring.number]
    assert all(worker.tasks for worker in world.workers.values()), "the others have the rest meanwhile"
    world.come_to_rest()
    trainer.next(1, hold=False)


@pytest.mark.parametrize("when", ["ring", "rows"])
def test_when_that_one_is_dead_another_makes_them(when):
    world, trainer, measuring = begun()
    world.work([each for each in world.workers.values() if each.tasks].index(measuring))
    if when == "rows":
        while world.pending:
            world.deliver(0)
    world.kill_worker(list(world.workers).index(measuring.number))
    world.come_to_rest()
    world.check()
    trainer.next(1, hold=False)
