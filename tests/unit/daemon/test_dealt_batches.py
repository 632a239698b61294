"""Batches that are dealt go to the workers in turn, whole, also after a worker's death."""

from __future__ import annotations

import pytest

from prefetchd.wire.messages import FILL_ROWS, MEASURE
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 120, 3, workers=3, dealt=True)


@pytest.mark.parametrize("deaths", [0, 4])
def test_each_step_is_its_worker_s_turn(deaths):
    cuts = deaths > 0  # rows that a worker has died on
    world = World(workers=4, slots=8)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, False)
    made = {}
    while not trainer.is_at_end(1):
        if world.pending:
            world.deliver(0)
        elif busy := [each for each in world.workers.values() if each.tasks]:
            for worker in busy:
                for _, kind, _, step, first, end, *_ in worker.tasks:
                    assert kind in (MEASURE, FILL_ROWS)
                    assert cuts or (first, end) == (0, 3)
                    made[step] = world.engine.pool.workers[worker.number].worker_index
            if deaths and len(made) > 5:
                deaths -= 1
                world.kill_worker(0)
            else:
                world.work(0)
        else:
            trainer.next(1, hold=False)
            trainer.flush()
    assert made == {step: step % 3 for step in range(40)}
