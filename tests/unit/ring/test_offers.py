"""Whom a slot's batch is offered to, as the segment tells it."""

from __future__ import annotations

from prefetchd.ring.offers import Offers, takers
from prefetchd.wire.messages import Published
from prefetchd.wire.segment_layout import CONSUMERS

LAST = CONSUMERS - 1


def test_all_that_a_message_tells_of_is_its_consumer_s_until_the_lease_has_ended():
    offers = Offers([0] * 6)
    offers.record(0, Published(((1, 0, 0, 1, 2, 7, 5, 8), (2, 0, 9, 0, 3, 7))))
    offers.record(LAST, Published(((1, 0, 0, 1, 2, 7),), ((1, 0, 4),)))
    assert [takers(word) for word in offers.words(6)[2:]] == [
        ({0, LAST}, set()),
        (set(), {0}),
        (set(), set()),
        ({0}, set()),
    ]
    offers.clear_released(0, lambda slot: slot == 5, (2, 5))
    assert [takers(word) for word in offers.words(6)[2:]] == [
        ({LAST}, set()),
        (set(), {0}),
        (set(), set()),
        ({0}, set()),
    ]
    offers.clear_released(0, lambda slot: False)
    assert offers.words(6) == (0, 0, 1 << LAST, 0, 0, 0)


def test_another_batch_in_the_slot_is_offered_to_nobody():
    offers = Offers([0] * 2)
    offers.record(LAST, Published(((1, 0, 0, 0, 1, 7, 0, 8),)))
    offers.claimed(1)
    assert [takers(word) for word in offers.words(2)] == [(set(), {LAST}), (set(), set())]


def test_slots_that_are_not_there_are_ignored():
    """A trainer may say anything."""
    offers = Offers([1, 1])
    offers.clear_released(0, lambda slot: False, (2, -1, 1 << 63))
    assert offers.words(2) == (1, 1)
