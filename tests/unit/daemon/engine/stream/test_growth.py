"""Rings grow with their batches as far as there is memory, and a batch fails only when it cannot fit."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.ring.capacity import Bounds
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import SLOT_BYTES, World

SLOTS = 4


class Growing(World):
    """One trainer, whose batches at these steps take so many slots; the ring begins with SLOTS."""

    def __init__(self, wide: dict[int, int], *, memory_slots: int | None = None, most: int = 0, **arguments):
        super().__init__(slots=SLOTS, memory_slots=memory_slots, **({"by_rows": False} | arguments))
        self.most_slots = most or 16 * SLOTS
        self.asked: list[int] = []
        self.logged: list[str] = []
        for step, span in wide.items():
            self.sizes[0, step] = span * SLOT_BYTES
        self.deviating |= self.sizes.keys()
        self.trainer = self.join(StreamSpec("0" * 32, 0, "sequential", 60, 3, buffer_batches=SLOTS))
        self.trainer.place(1, 0, 0, False)
        self.come_to_rest()

    def _run(self, command):
        if isinstance(command, c.GrowRing):
            self.asked.append(command.slots)
        if isinstance(command, c.Log):
            self.logged.append(command.event)
        super()._run(command)

    @property
    def stream_state(self):
        return next(iter(self.engine.streams.values()))

    def take(self, steps: int, *, hold: bool = False) -> list[str]:
        """The errors in the place of the next `steps` batches; next() waits for each as long as it takes."""
        errors = []
        for _ in range(steps):
            for _ in range(10):
                if self.trainer.can_next(1):
                    break
                self.trainer.wait(1)
                self.come_to_rest()
            cursor = self.trainer.cursors[1]
            offer = cursor.offers[cursor.step]
            if isinstance(offer, bytes):
                error = decode_exception(offer)
                assert error.type_name == "BatchTooLargeError"
                errors.append(error.message)
            self.trainer.next(1, hold=hold)
            self.come_to_rest()
        return errors


@pytest.mark.parametrize("by_rows", [True, False], ids=["rows", "whole"])
def test_a_ring_grows_for_a_batch_that_takes_more_than_all_of_it(by_rows):
    world = Growing({3: 2 * SLOTS, 9: 3 * SLOTS}, by_rows=by_rows)
    assert world.take(20) == []
    assert world.stream_state.window.ring.reserved >= 6 * SLOTS


def test_a_batch_of_which_two_do_not_fit_goes_alone():
    world = Growing({3: 5, 4: 5, 5: 5}, memory_slots=6)
    assert world.take(20) == []
    assert world.stream_state.window.ring.reserved <= 6


def test_and_so_it_does_where_the_ring_may_never_have_more():
    world = Growing({3: 5, 4: 5, 5: 5}, most=6)
    assert world.take(20) == []


def test_a_batch_larger_than_the_ring_may_ever_be_is_told_with_what_bounds_it():
    world = Growing({3: 7}, most=6)
    world.stream_state.bounds = Bounds(6, 6, "the store is small. Enlarge it")
    # It was made before.
    assert len(world.take(20)) <= 1
    world = Growing({9: 7}, most=6)
    world.stream_state.bounds = Bounds(6, 6, "the store is small. Enlarge it")
    (error,) = world.take(20)
    assert error == (
        "the batch at epoch 0, step 9 takes 700 bytes; allowed: 600 bytes, all that its ring may have: the store is "
        "small. Enlarge it"
    )


def test_memory_that_was_short_once_is_asked_for_again_by_the_next_outlier():
    world = Growing({3: 2 * SLOTS, 19: 2 * SLOTS}, memory_slots=SLOTS)
    (error,) = world.take(7)
    assert "step 3 takes 800 bytes; allowed: the 400 bytes of its ring, which cannot grow: no room" in error
    world.memory_slots = 100
    assert world.take(13) == []
    assert world.stream_state.counters.failed == 1


def test_what_was_refused_and_nobody_needs_is_not_asked_for_again():
    world = Growing(dict.fromkeys(range(1, 20), 2), memory_slots=SLOTS)
    assert world.take(20) == []
    assert len(world.asked) <= 2
    assert world.logged.count("ring stays small") == 1


def test_a_batch_that_finds_no_room_beside_what_the_loop_holds_is_told_so():
    world = Growing({4: 5}, memory_slots=6)
    assert world.take(3, hold=True) == []
    held = sum(each.span for each in world.trainer.held)
    assert held >= 2
    (error,) = world.take(2)
    assert "batches that are held take" in error
    assert "keep copies of them" in error
    world.trainer.flush()


def test_the_ring_grows_beside_what_the_loop_holds_if_there_is_memory():
    world = Growing({4: 5}, memory_slots=9)
    assert world.take(3, hold=True) == []
    assert len(world.trainer.held) >= 2
    assert world.take(2) == []
