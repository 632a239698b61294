"""A ring that is to have another size: more slots at once, fewer as their batches are used, never too few."""

from __future__ import annotations

import dataclasses

from prefetchd.daemon.engine.commands import GrowRing, ShrinkRing
from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.resizing import give_up_slots, resize
from prefetchd.ring.capacity import Bounds
from tests.property.world import World
from tests.unit.daemon.engine.stream.rooms import SPEC, stream_of


class Bed:
    """A stream whose ring has 16 slots, and may have 40."""

    def __init__(self, spec=SPEC) -> None:
        self.commands: list = []
        self.stream = stream_of(16, self.commands, spec)
        self.stream.wanted_slots, self.stream.bounds = 16, Bounds(16, 40)
        self.ring = self.stream.window.ring

    def resize(self, slots: int) -> list:
        resize(self.stream, slots, self.commands)
        give_up_slots(self.stream, self.commands)
        found, self.commands[:] = list(self.commands), []
        return found


def test_more_slots_are_asked_for_within_the_bounds():
    bed = Bed()
    assert bed.resize(24) == [GrowRing(1, 24)]
    assert bed.stream.wanted_slots == 24
    bed.ring.reserve(24)
    assert bed.resize(1000) == [GrowRing(1, 40)]


def test_slots_that_are_free_are_given_up_at_once():
    bed = Bed()
    assert bed.resize(6) == [ShrinkRing(1, 6)]
    assert (bed.stream.wanted_slots, bed.ring.reserved) == (6, 6)
    assert bed.resize(6) == []


def test_others_when_their_batches_have_been_used():
    bed = Bed()
    grants = [bed.ring.claim() for _ in range(10)]
    assert bed.resize(6) == [ShrinkRing(1, 10)]
    bed.ring.abandon(grants[8])
    give_up_slots(bed.stream, bed.commands)
    assert bed.commands == []
    bed.ring.abandon(grants[9])
    give_up_slots(bed.stream, bed.commands)
    assert bed.commands == [ShrinkRing(1, 8)]


def test_while_a_ring_gives_up_slots_it_may_get_them_back():
    bed = Bed()
    grants = [bed.ring.claim() for _ in range(16)]
    assert bed.resize(6) == []
    assert bed.resize(12) == [GrowRing(1, 12)]
    bed.ring.abandon(grants[11])
    assert bed.ring.claim().slots == (11,)


def test_while_it_grows_nothing_is_resized():
    bed = Bed()
    bed.resize(24)
    assert bed.resize(8) == []
    assert bed.stream.wanted_slots == 24


def test_no_fewer_than_the_smallest_ring_has():
    bed = Bed()
    assert bed.resize(1) == [ShrinkRing(1, SPEC.minimum_slots)]


def test_what_lies_behind_the_consumers_keeps_its_room():
    bed = Bed(dataclasses.replace(SPEC, lookback=6))
    assert bed.resize(1) == [ShrinkRing(1, 12)]


def test_a_batch_that_waits_for_room_keeps_it():
    bed = Bed()
    bed.stream.claims.roomless.append(Batch((0, 0), 4, None, True, span=9))
    assert bed.resize(1) == [ShrinkRing(1, 9)]


def test_without_a_ring_or_a_change_nothing_happens():
    bed = Bed()
    assert bed.resize(16) == []
    bed.stream.window.ring = None
    assert bed.resize(8) == []


def test_a_ring_that_gives_up_slots_has_their_memory_until_then():
    bed = Bed()
    grants = [bed.ring.claim() for _ in range(16)]
    bed.resize(6)
    assert bed.stream.ring_bytes == 16 * 100
    bed.ring.abandon(grants[15])
    give_up_slots(bed.stream, bed.commands)
    assert bed.stream.ring_bytes == 15 * 100


def test_a_trainer_that_holds_all_that_a_smaller_ring_has_gets_its_next_batch_all_the_same():
    world = World(2, slots=12)
    trainer = world.join(dataclasses.replace(SPEC, length=240))
    trainer.place(1, 0, 0, False)
    world.come_to_rest()
    for _ in range(6):
        trainer.next(1, hold=True)
        world.come_to_rest()
    assert sorted(held.slot for held in trainer.held) == [0, 1, 2, 3, 4, 5]
    world.resize(0, 4)
    for _ in range(20):
        if not trainer.can_next(1):
            trainer.wait(1)
            world.come_to_rest()
        trainer.next(1, hold=True)
    assert trainer.cursors[1].step == 26
