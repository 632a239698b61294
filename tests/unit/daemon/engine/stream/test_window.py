"""What gives way when a batch finds no room."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import EpochLengths, new_cursor
from prefetchd.ring.policy import Ring

SPANS = {1: 3, 3: 2, 5: 2}
"""Slots of each batch that is ready: too many for one that needs two more, and for a share of more than three."""


@pytest.mark.parametrize(
    ("step", "stay"),
    [(0, {1}), (2, {1}), (4, {1, 3}), (6, {1, 3, 5})],
)
def test_what_lies_on_the_way_to_a_batch_does_not_give_way_to_it(step, stay):
    """Found by chaos: batches had become larger, so that a share of the ring was fewer of them, and one that was ready
    gave way to one that comes after it. It was made again a moment later."""
    lengths = EpochLengths(9)
    window = Window(lengths, lambda slot, record: None)
    window.ring = Ring(8)
    window.ring.reserve(8)
    for ready, span in SPANS.items():
        grant = window.ring.claim(span)
        window.ring.fill(grant)
        window.batches[0, ready] = Batch((0, ready), 1, grant, filled=True)
    cursor = window.cursors["trainer", 1] = new_cursor(("trainer", 1), "trainer", (0, 0), False, lengths)
    assert window.limit(cursor) == 3
    window.cursors_moved()
    window.make_room(Batch((0, step), 1, span=2))
    assert {position[1] for position in window.batches} == stay


@pytest.mark.parametrize(("step", "stay"), [(1, {0, 3, 4}), (2, {0, 3, 4, 5})])
def test_a_cursor_s_share_does_not_give_way_to_what_another_comes_to_at_the_same_time(step, stay):
    """Found under load, of a ring that its trainer has left: one batch of another task was still in the way, so that a
    batch of the one half gave way to one of the other half, and was made again a moment later."""
    lengths = EpochLengths(9)
    window = Window(lengths, lambda slot, record: None)
    window.ring = Ring(6)
    window.ring.reserve(6)
    for ready in (0, 3, 4, 5):
        grant = window.ring.claim(1)
        window.ring.fill(grant)
        window.batches[0, ready] = Batch((0, ready), 1, grant, filled=True)
    for number, first in enumerate([3, 0]):
        key = ("nobody", number)
        window.cursors[key] = new_cursor(key, "nobody", (0, first), True, lengths)
    window.make_room(Batch((0, step), 1))
    assert {position[1] for position in window.batches} == stay


def test_what_is_ready_does_not_give_way_while_slots_of_what_nobody_wants_come_free():
    """Found under load: of a ring that its trainer has left two batches were still under way beyond the half that
    stays. They leave their slots when their tasks end; until then one of that half gave way, and was made again."""
    lengths = EpochLengths(9)
    window = Window(lengths, lambda slot, record: None)
    window.ring = Ring(6)
    window.ring.reserve(6)
    for step in (0, 3, 4, 5, 6, 7):
        batch = window.batches[0, step] = Batch((0, step), 1, window.ring.claim(1))
        if step < 6:
            window.ring.fill(batch.grant)
            batch.filled = True
        else:
            batch.under_way = 1
    for number, first in enumerate([3, 0]):
        key = ("nobody", number)
        window.cursors[key] = new_cursor(key, "nobody", (0, first), True, lengths)
    window.cursors_moved()
    late = [window.batches[0, 6], window.batches[0, 7]]
    for _ in range(2):
        assert not window.make_room(Batch((0, 1), 1))
    assert {position[1] for position in window.batches} == {0, 3, 4, 5, 6, 7}
    assert all(each.cancelled for each in late)
