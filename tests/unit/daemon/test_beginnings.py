"""A ring without a trainer holds the beginning as well, also where only a sampler knows the order. No processes."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.stream.keeping import BEGINS, GOES_ON
from prefetchd.wire.messages import AskPlan
from tests.property.test_engine import SPEC
from tests.property.world import PLANNED_ROWS, World

STEPS = len(PLANNED_ROWS)
SLOTS = 8
SAMPLED = dataclasses.replace(SPEC, order="sampler")


class Watched(World):
    """A world that keeps which epochs its planners were asked for, and how many of those there were."""

    def __init__(self, **arguments):
        super().__init__(slots=SLOTS, planned=True, **arguments)
        self.asked: list[int] = []
        self.started = 0

    def _run(self, command):
        if isinstance(command, c.Assign) and isinstance(command.message, AskPlan):
            self.asked.append(command.message.epoch)
        super()._run(command)
        self.started += isinstance(command, c.StartWorker) and command.worker in self.planners

    def go(self, trainer, epoch: int, steps: int) -> None:
        """The iterator of `epoch`, whose number is its own, over so many steps."""
        number = epoch + 1
        trainer.place(number, epoch, 0, True)
        trainer.activate(number)
        for _ in range(steps):
            self.come_to_rest()
            trainer.next(number, hold=False)
        self.come_to_rest()

    def leave_at(self, epoch: int, step: int):
        """A trainer comes, ends there, and the ring is filled without it."""
        trainer = self.join(SAMPLED)
        for each in range(epoch):
            self.go(trainer, each, STEPS)
            trainer.close(each + 1)
        self.go(trainer, epoch, step)
        self.asked, self.started = [], 0
        self.goodbye(trainer)
        self.kill(trainer)
        self.come_to_rest()
        (stream,) = self.engine.streams.values()
        return stream


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_a_rerun_finds_half_a_ring_of_the_beginning_and_no_planner_begins_again(epoch):
    world = Watched()
    stream = world.leave_at(epoch, 2)
    assert stream.window.cursors.keys() == {GOES_ON, BEGINS}
    assert {(0, step) for step in range(SLOTS // 2)} <= stream.window.batches.keys()
    assert {(epoch, step) for step in range(2, STEPS)} <= stream.window.batches.keys()
    assert all(each >= epoch for each in world.asked)
    assert not world.started
    again = world.join(SAMPLED)
    again.place(1, 0, 0, True)
    again.activate(1)
    # Nothing is made meanwhile.
    for _ in range(SLOTS // 2):
        assert again.can_next(1)
        again.next(1, hold=False)


def test_a_trainer_that_came_for_a_later_epoch_leaves_nothing_of_the_beginning():
    world = Watched()
    trainer = world.join(SAMPLED)
    world.go(trainer, 3, 2)
    world.goodbye(trainer)
    world.kill(trainer)
    world.come_to_rest()
    (stream,) = world.engine.streams.values()
    assert stream.window.cursors.keys() == {GOES_ON}


def test_a_rerun_that_begins_otherwise_is_planned_anew():
    world = Watched()
    world.leave_at(1, 2)
    world.variant = 5
    again = world.join(SAMPLED)
    again.place(1, 0, 0, True)
    again.activate(1)
    for _ in range(STEPS):
        world.come_to_rest()
        while not again.can_next(next(iter(again.cursors))):
            world.come_to_rest()
        number = next(iter(again.cursors))
        again.next(number, hold=False)
        world.come_to_rest()
