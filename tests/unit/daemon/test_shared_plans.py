"""Two trainers on one stream whose order a sampler decides: who may say how an epoch begins. No processes."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.wire.messages import Assume
from tests.property.test_engine import SPEC
from tests.property.world import SimTrainer, World

SAMPLED = dataclasses.replace(SPEC, order="sampler")


class Pair:
    """Two trainers, of which the first is in epoch 0, which was planned in variant 0, and has `yielded` of it."""

    def __init__(self, yielded: int = 0) -> None:
        self.world = World(slots=8, planned=True)
        self.first, self.second = (self.world.join(SAMPLED, shared=True) for _ in range(2))
        self.begin(self.first, 1)
        for _ in range(yielded):
            self.first.next(1, hold=False)

    def begin(self, trainer: SimTrainer, number: int, epoch: int = 0) -> None:
        trainer.place(number, epoch, 0, True)
        trainer.activate(number)
        self.world.come_to_rest()

    def says(self, trainer: SimTrainer, variant: int, epoch: int = 0) -> None:
        self.world.send(trainer, Assume(epoch, variant))
        self.world.come_to_rest()

    def goes_through(self, trainer: SimTrainer, number: int) -> None:
        """Its iterator, to the epoch's end. The world's own laws see to it that no slot stays behind."""
        while not trainer.is_at_end(number):
            self.world.come_to_rest()
            assert trainer.can_next(number), "stuck"
            trainer.next(number, hold=False)
        trainer.close(number)

    @property
    def planned_in(self) -> int:
        return self.planned(0)

    def planned(self, epoch: int) -> int:
        """The variant."""
        (stream,) = self.world.engine.streams.values()
        return next(each for each in range(9) if stream.plans.agrees(Assume(epoch, each)))

    @property
    def offered_variants(self) -> set[int]:
        """Of the batches that the second one's iterator was offered."""
        memory = self.world.memory[self.second.stream]
        return {
            variant
            for slot, *_ in self.second.cursors[2].offers.values()
            for _, variant in memory[slot]["rows"].values()
        }

    @property
    def failed(self) -> list[SimTrainer]:
        return [each for each in (self.first, self.second) if each.failed]


def test_who_begins_in_another_order_than_one_that_has_yielded_is_told_so():
    pair = Pair(yielded=1)
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    assert pair.failed == [pair.second]
    assert "choose another name with stream=" in pair.second.failed
    assert pair.planned_in == 0


def test_who_has_only_loaded_a_state_voids_nothing_of_one_that_has_yielded():
    pair = Pair(yielded=1)
    pair.second.place(2, 0, 0, True)
    pair.says(pair.second, 1)
    assert not pair.failed
    assert pair.planned_in == 0


def test_who_begins_first_says_how_and_one_that_begins_too_may_mean_the_same():
    pair = Pair()
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    assert not pair.failed
    pair.says(pair.first, 1)
    assert not pair.failed
    assert pair.planned_in == 1


def test_who_has_said_how_an_epoch_begins_is_not_contradicted():
    pair = Pair()
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    pair.says(pair.first, 3)
    assert pair.failed == [pair.first]
    assert pair.planned_in == 1


def test_who_has_loaded_a_state_and_begins_with_another_one_does_not_hold_it_up_to_others():
    pair = Pair()
    pair.second.place(2, 0, 0, True)
    for variant in (1, 1):
        pair.says(pair.second, variant)
    pair.second.activate(2)
    pair.says(pair.first, 3)
    assert not pair.failed
    assert pair.planned_in == 3


@pytest.mark.parametrize("deaf", [False, True])
def test_offers_of_a_void_plan_stand_in_nobody_s_way(deaf):
    """Even those of one that does not answer: it may be long at something else."""
    pair = Pair()
    pair.second.place(2, 0, 0, True)
    pair.world.come_to_rest()
    assert pair.offered_variants == {0}
    pair.second.deaf = deaf
    pair.says(pair.first, 1)
    assert pair.offered_variants == {0 if deaf else 1}
    pair.world.variant = 1
    pair.goes_through(pair.first, 1)
    pair.second.deaf = False
    pair.world.answer(pair.second)
    pair.second.activate(2)
    pair.goes_through(pair.second, 2)


@pytest.mark.parametrize("yields", [False, True])
def test_what_one_means_of_a_later_epoch_stays_when_another_says_how_an_earlier_one_begins(yields):
    """Found by chaos: the second one came to that epoch before the first had said again what it had said, and failed
    as if it meant another order."""
    pair = Pair()
    pair.begin(pair.first, 3, epoch=1)
    pair.says(pair.first, 3, epoch=1)
    if yields:
        pair.world.variant = 3
        pair.first.next(3, hold=False)
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    assert (pair.planned(0), pair.planned(1)) == (1, 3)
    pair.begin(pair.second, 4, epoch=1)
    pair.says(pair.second, 3, epoch=1)
    assert not pair.failed
    pair.world.kill_planner()
    pair.world.variant = 3
    pair.goes_through(pair.second, 4)
    pair.goes_through(pair.first, 3)


def test_nothing_of_an_epoch_that_one_means_is_taken_back():
    pair = Pair()
    pair.begin(pair.first, 3, epoch=1)
    pair.says(pair.first, 3, epoch=1)
    offers = dict(pair.first.cursors[3].offers)
    assert offers
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    assert pair.first.cursors[3].offers == offers


def test_what_lies_between_the_two_is_planned_anew():
    pair = Pair()
    pair.begin(pair.first, 3, epoch=2)
    pair.says(pair.first, 3, epoch=2)
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    pair.begin(pair.second, 4, epoch=1)
    assert [pair.planned(epoch) for epoch in (0, 1, 2)] == [1, 1, 3]


def test_one_that_has_left_an_epoch_means_nothing_of_it_any_more():
    pair = Pair()
    pair.says(pair.first, 2)
    pair.first.close(1)
    pair.begin(pair.first, 3)
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    assert not pair.failed
    assert pair.planned_in == 1


def test_one_that_goes_on_under_another_number_means_what_it_has_said():
    pair = Pair()
    pair.first.assume(pair.first.cursors[1], 2)
    pair.begin(pair.second, 2)
    pair.says(pair.second, 1)
    assert pair.failed == [pair.second]


def test_what_was_yielded_of_a_plan_that_is_void_by_then_is_not_held_up_to_others():
    """It is told of while the plan's offers are on their way back."""
    pair = Pair()
    pair.begin(pair.first, 3, epoch=1)
    pair.first.deaf = True
    pair.world.send(pair.second, Assume(0, 1))
    pair.first.next(3, hold=False)
    pair.first.deaf = False
    pair.world.answer(pair.first)
    pair.world.come_to_rest()
    assert pair.planned(1) == 1
    pair.begin(pair.second, 4, epoch=1)
    pair.says(pair.second, 0, epoch=1)
    assert not pair.failed
    pair.goes_through(pair.second, 4)
    pair.goes_through(pair.first, 3)
