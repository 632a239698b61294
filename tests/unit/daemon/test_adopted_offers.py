"""What a daemon's successor offers while a consumer of the ring has not come back: it lives, and may still take what it
was offered. No processes."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.stream.adoption import FoundConsumer, FoundRing
from prefetchd.ring.offers import takers
from prefetchd.ring.policy import SlotState
from prefetchd.wire.segment_layout import SLOT_READY, SlotRecord
from tests.property.test_engine import SPEC
from tests.property.world import SLOT_BYTES, World


class Shared:
    """A ring of 8 slots and `trainers` at its first batch, all of whom came before that was there."""

    def __init__(self, trainers: int, lookback: int = 0) -> None:
        self.world = World(slots=8, lookback=bool(lookback))
        self.spec = dataclasses.replace(SPEC, lookback=lookback)
        self.trainers = [self.join() for _ in range(trainers)]
        self.world.come_to_rest()

    def join(self):
        trainer = self.world.join(self.spec, shared=True)
        trainer.place(1, 0, 0, True)
        trainer.activate(1)
        return trainer

    def crash(self):
        self.world.crash()
        self.world.former_workers_die()

    def takers(self, slot):
        """The consumers that the ring says may copy what is in the slot, and those that may have it."""
        (offers,) = self.world.offers.values()
        return takers(offers.words(8)[slot])


def told(trainer, number=1):
    """Of each step that the trainer's iterator was offered, whether it is to be copied."""
    return {step: copied for step, (_, _, copied) in trainer.cursors[number].offers.items()}


def slots(trainer, number=1):
    return [slot for slot, *_ in trainer.cursors[number].offers.values()]


def test_what_an_absent_one_may_copy_others_may_copy_too():
    ring = Shared(trainers=2)
    first, second = ring.trainers
    assert told(first) == told(second) == {0: True, 1: True}
    ring.crash()
    ring.world.reconnect(second)
    assert told(second) == dict.fromkeys(range(4), True)
    for trainer in (second, first):
        trainer.next(1, hold=False)


def test_what_an_absent_one_may_have_as_it_is_is_its_own():
    """It may write to it meanwhile."""
    ring = Shared(trainers=1)
    (first,) = ring.trainers
    assert told(first) == dict.fromkeys(range(4), False)
    ring.crash()
    newcomer = ring.join()
    assert not told(newcomer)
    first.next(1, hold=True)
    ring.world.reconnect(first)
    ring.world.come_to_rest()
    assert slots(newcomer)[0] != first.held[0].slot
    for trainer in (newcomer, first):
        trainer.next(1, hold=False)


def test_what_was_offered_to_nobody_is_everybody_s():
    ring = Shared(trainers=2)
    ring.crash()
    newcomer = ring.join()
    assert set(told(newcomer)) > set(told(ring.trainers[0]))


@pytest.mark.parametrize("lookback", [0, 2])
def test_what_an_absent_one_has_let_go_is_not_taken_for_unchanged(lookback):
    """It had it as it is."""
    ring = Shared(trainers=1, lookback=lookback)
    (first,) = ring.trainers
    slot = slots(first)[0]
    first.next(1, hold=False)
    first.flush()
    assert ring.takers(slot) == (set(), set())
    ring.crash()
    newcomer = ring.join()
    assert slot not in slots(newcomer)


def test_what_one_iterator_has_let_go_another_one_may_still_take():
    ring = Shared(trainers=2)
    first, _ = ring.trainers
    first.place(2, 0, 0, True)
    first.activate(2)
    ring.world.come_to_rest()
    slot = slots(first, 1)[0]
    assert slot == slots(first, 2)[0]
    for number in (1, 2):
        assert first.record in ring.takers(slot)[0]
        first.next(number, hold=False)
        first.flush()
    assert first.record not in ring.takers(slot)[0]


def test_what_a_dead_one_was_offered_is_not_its_successor_s():
    """The next consumer writes the same record."""
    ring = Shared(trainers=1)
    (first,) = ring.trainers
    taken = slots(first)
    ring.world.kill(first)
    successor = ring.world.join(ring.spec, shared=True)
    assert successor.record == first.record
    assert {ring.takers(slot) for slot in taken} == {(frozenset(), frozenset())}


def test_of_two_batches_of_one_position_the_later_one_is_offered_and_none_is_left_over():
    """The earlier one was of a plan that was void, and its consumer had not heard of that."""
    world = World(slots=4)
    records = tuple(SlotRecord(SLOT_READY, 1, 10 + slot, 0, 0) for slot in range(2))
    consumers = tuple(FoundConsumer(record, 1, True, (0, 0), ()) for record in range(2))
    found = FoundRing(1, 4, 4, SLOT_BYTES, b"layout", True, records, (1, 2), consumers)
    stream = world.engine.adopt(SPEC, found, 0.0)
    assert stream.window.batches[0, 0].grant.generation == 11
    for record in range(2):
        world.engine.absent_died(stream.number, record, (), 0.0)
    assert stream.window.batches[0, 0].grant.generation == 11
    assert stream.window.ring.count(SlotState.READY) == 1
