"""Cursors walk their epoch, or on through the epochs: against a walk that takes one step at a time."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from prefetchd.ring.cursors import Cursor, EpochLengths, advance_fill, forget_from, new_cursor
from tests.budgets import tries


def learnt(*steps: int) -> EpochLengths:
    """Lengths that became known one by one, epoch 0 first; later epochs are unknown."""
    lengths = EpochLengths(None)
    for epoch, count in enumerate(steps):
        lengths.learn(epoch, count)
    return lengths


def living(position: tuple[int, int], lengths: EpochLengths) -> Cursor:
    return new_cursor("key", "consumer", position, False, lengths)


def waiting(position: tuple[int, int], lengths: EpochLengths) -> Cursor:
    return new_cursor("key", "consumer", position, True, lengths)


def fill_all(cursor: Cursor, lengths: EpochLengths, limit: int) -> list[tuple[int, int]]:
    """Claims what the cursor may have ahead; gives the positions in the order of their claims."""
    claimed: list[tuple[int, int]] = []
    while (position := advance_fill(cursor, lengths, limit, set(claimed).__contains__)) is not None:
        assert position not in claimed
        assert len(claimed) <= limit, "more than it may have ahead"
        claimed.append(position)
    return claimed


# --- lengths ---


def test_one_length_holds_for_every_epoch():
    lengths = EpochLengths(7)
    assert [lengths.steps(epoch) for epoch in (0, 1, 10**9)] == [7, 7, 7]


def test_lengths_are_unknown_until_they_are_learnt():
    lengths = EpochLengths(None)
    assert lengths.steps(0) is None
    lengths.learn(0, 5)
    assert (lengths.steps(0), lengths.steps(1)) == (5, None)
    lengths.learn(1, 0)
    assert (lengths.steps(0), lengths.steps(1)) == (5, 0)


def test_the_last_step_is_followed_by_the_next_epoch():
    lengths = EpochLengths(3)
    walk = list(itertools.accumulate(range(6), lambda position, _: lengths.after(position), initial=(4, 0)))
    assert walk == [(4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 2), (6, 0)]


def test_while_the_end_is_unknown_a_step_follows():
    lengths = EpochLengths(None)
    assert lengths.after((0, 10**6)) == (0, 10**6 + 1)
    lengths.learn(0, 4)
    assert [lengths.after((0, step)) for step in (2, 3, 4, 9)] == [(0, 3), (1, 0), (1, 0), (1, 0)]


def test_an_epoch_ends_where_it_has_no_step():
    lengths = learnt(3, 0)
    assert [lengths.is_end((0, step)) for step in (0, 2, 3, 4)] == [False, False, True, True]
    assert lengths.is_end((1, 0))
    assert not lengths.is_end((2, 10**9)), "nobody knows"
    assert EpochLengths(0).is_end((5, 0))
    assert not EpochLengths(1).is_end((5, 0))


@pytest.mark.parametrize("kind", ["fixed", "learnt"])
@given(data=st.data())
@tries(80)
def test_the_distance_is_the_number_of_steps_between(kind, data):
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    if kind == "fixed":
        counts = counts[:1] * 5
    lengths = EpochLengths(counts[0]) if kind == "fixed" else learnt(*counts)
    walk = [(epoch, step) for epoch, count in enumerate(counts) for step in range(count)]
    a, b = sorted(data.draw(st.tuples(st.integers(0, len(walk) - 1), st.integers(0, len(walk) - 1))))
    assert lengths.distance(walk[a], walk[b]) == b - a
    position = walk[a]
    for _ in range(b - a):
        position = lengths.after(position)
    assert position == walk[b]


def test_an_epoch_s_very_end_is_no_step_before_the_next_epoch():
    for lengths in (EpochLengths(3), learnt(3, 3, 3)):
        assert lengths.distance((0, 3), (1, 0)) == 0
        assert lengths.distance((0, 1), (0, 3)) == 2
        assert lengths.distance((0, 3), (2, 1)) == 4


def test_epochs_without_steps_add_nothing_to_a_distance():
    assert EpochLengths(0).distance((0, 0), (9, 0)) == 0
    assert learnt(2, 0, 0, 3).distance((0, 1), (3, 1)) == 2
    assert learnt(0, 0).distance((0, 0), (2, 4)) == 4


def test_a_distance_within_an_epoch_needs_no_length():
    assert EpochLengths(None).distance((3, 5), (3, 105)) == 100


# --- placing ---


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_new_cursor_has_nothing_offered_and_nothing_filled(is_waiting):
    cursor = new_cursor("k", "c", (2, 1), is_waiting, EpochLengths(5))
    assert (cursor.key, cursor.consumer, cursor.waiting, cursor.epoch) == ("k", "c", is_waiting, 2)
    assert cursor.next == cursor.offered == cursor.fill == (2, 1)
    assert not cursor.knows_end
    assert not cursor.recalled


def test_a_living_cursor_at_its_epoch_s_end_fills_nothing():
    """Resumed from a checkpoint after the last batch: it yields nothing."""
    for lengths in (EpochLengths(3), learnt(3)):
        cursor = living((0, 3), lengths)
        assert (cursor.next, cursor.fill) == ((0, 3), (0, 3))
        assert fill_all(cursor, lengths, 10) == []


def test_a_waiting_cursor_at_an_epoch_s_end_is_filled_from_the_next_epoch():
    for lengths in (EpochLengths(3), learnt(3), learnt(3, 3)):
        cursor = waiting((0, 3), lengths)
        assert cursor.next == cursor.offered == (0, 3)
        assert cursor.fill == (1, 0)
        assert advance_fill(cursor, lengths, 10, lambda _: False) == (1, 0)


def test_without_any_steps_a_waiting_cursor_stays_where_it_is():
    cursor = waiting((4, 0), EpochLengths(0))
    assert cursor.fill == (4, 0)
    assert fill_all(cursor, EpochLengths(0), 10) == []


# --- what a cursor wants ---


def test_a_living_cursor_wants_what_is_left_of_its_epoch_from_its_first_unoffered_batch_on():
    cursor = living((1, 2), EpochLengths(5))
    cursor.offered = (1, 3)
    wanted = [position for position in itertools.product(range(4), range(5)) if cursor.wants(position)]
    assert wanted == [(1, 3), (1, 4)]


def test_a_waiting_cursor_wants_all_that_follows():
    cursor = waiting((1, 2), EpochLengths(5))
    wanted = [position for position in itertools.product(range(3), range(5)) if cursor.wants(position)]
    assert wanted == [(1, 2), (1, 3), (1, 4), *itertools.product([2], range(5))]


def test_a_living_cursor_walks_its_own_epoch_and_a_waiting_one_any():
    assert [living((1, 2), EpochLengths(5)).walks((epoch, 0)) for epoch in (0, 1, 2)] == [False, True, False]
    assert [waiting((1, 2), EpochLengths(5)).walks((epoch, 0)) for epoch in (1, 2, 9)] == [True, True, True]


# --- filling ---


def test_a_living_cursor_is_filled_to_its_epoch_s_end_and_no_further():
    for lengths in (EpochLengths(4), learnt(4, 4)):
        assert fill_all(living((0, 1), lengths), lengths, 100) == [(0, 1), (0, 2), (0, 3)]


def test_a_cursor_has_no_more_ahead_than_its_limit():
    lengths = EpochLengths(100)
    for limit in (0, 1, 3):
        cursor = living((0, 10), lengths)
        assert fill_all(cursor, lengths, limit) == [(0, 10 + i) for i in range(limit)]
        assert advance_fill(cursor, lengths, limit, lambda _: False) is None


def test_progress_makes_room_for_as_many_more():
    lengths = EpochLengths(100)
    cursor = living((0, 0), lengths)
    assert fill_all(cursor, lengths, 3) == [(0, 0), (0, 1), (0, 2)]
    cursor.next = cursor.offered = (0, 2)
    claimed = {(0, 2)}
    assert advance_fill(cursor, lengths, 3, claimed.__contains__) == (0, 3)


def test_a_waiting_cursor_walks_on_through_the_epochs():
    for lengths in (EpochLengths(2), learnt(2, 2, 2)):
        assert fill_all(waiting((0, 1), lengths), lengths, 5) == [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_epochs_of_one_step_each_are_walked_through():
    lengths = EpochLengths(1)
    assert fill_all(waiting((7, 0), lengths), lengths, 4) == [(7, 0), (8, 0), (9, 0), (10, 0)]


def test_epochs_without_steps_are_not_walked_for_ever():
    lengths = EpochLengths(0)
    assert fill_all(living((0, 0), lengths), lengths, 4) == []
    assert fill_all(waiting((0, 0), lengths), lengths, 4) == []


def test_claimed_batches_are_passed_by_and_count_as_ahead():
    lengths = EpochLengths(10)
    cursor = living((0, 0), lengths)
    assert advance_fill(cursor, lengths, 4, {(0, 0), (0, 1)}.__contains__) == (0, 2)
    assert cursor.fill == (0, 2)
    assert advance_fill(cursor, lengths, 4, lambda position: True) is None
    assert cursor.fill == (0, 4)


def test_asking_again_gives_the_same_batch_until_it_is_claimed():
    lengths = EpochLengths(10)
    cursor = waiting((0, 9), lengths)
    assert [advance_fill(cursor, lengths, 4, lambda _: False) for _ in range(3)] == [(0, 9)] * 3
    assert cursor.fill == (0, 9)


def test_each_claimed_batch_is_passed_by_once():
    """Amortised O(1): the walk does not begin again at the cursor's next batch."""
    lengths = EpochLengths(1000)
    cursor = living((0, 0), lengths)
    asked: list[tuple[int, int]] = []

    def is_claimed(position: tuple[int, int]) -> bool:
        asked.append(position)
        return len(asked) % 2 == 1

    for _ in range(300):
        advance_fill(cursor, lengths, 1000, is_claimed)
    assert len(asked) == 600


def test_an_epoch_of_unknown_length_is_filled_step_by_step():
    lengths = EpochLengths(None)
    for cursor in (living((0, 0), lengths), waiting((0, 0), lengths)):
        assert fill_all(cursor, lengths, 4) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_living_cursor_stops_where_its_epoch_turns_out_to_end():
    lengths = EpochLengths(None)
    cursor = living((0, 0), lengths)
    claimed = set(fill_all(cursor, lengths, 6))
    lengths.learn(0, 4)
    assert cursor.fill == (0, 6)
    assert advance_fill(cursor, lengths, 100, claimed.__contains__) is None


@pytest.mark.parametrize("filled", [3, 4, 6])
def test_a_waiting_cursor_walks_on_when_its_epoch_turns_out_to_end(filled):
    """Filled up to the end, or beyond it, before anybody knew where it is."""
    lengths = EpochLengths(None)
    cursor = waiting((0, 0), lengths)
    claimed = set(fill_all(cursor, lengths, filled))
    lengths.learn(0, 4)
    claimed = {position for position in claimed if not lengths.is_end(position)}
    following = []
    while len(claimed) < 8:
        position = advance_fill(cursor, lengths, 8, claimed.__contains__)
        assert position is not None, f"stuck at {cursor.fill}; the epoch has 4 steps"
        claimed.add(position)
        following.append(position)
    assert following == [*((0, step) for step in range(filled, 4)), (1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_waiting_cursor_passes_by_an_epoch_without_steps():
    """An iterable dataset may have nothing in one epoch and something in the next."""
    lengths = learnt(2, 0, 2)
    assert fill_all(waiting((0, 0), lengths), lengths, 4) == [(0, 0), (0, 1), (2, 0), (2, 1)]


@given(
    st.integers(1, 6),
    st.booleans(),
    st.tuples(st.integers(0, 3), st.integers(0, 5)),
    st.integers(0, 12),
    st.sets(st.tuples(st.integers(0, 6), st.integers(0, 5))),
)
@tries(200)
def test_what_is_claimed_is_the_unclaimed_part_of_the_walk_within_the_limit(steps, is_waiting, start, limit, others):
    lengths = EpochLengths(steps)
    start = (start[0], start[1] % steps)
    cursor = new_cursor("k", "c", start, is_waiting, lengths)
    claimed = set(others)
    order = []
    while (position := advance_fill(cursor, lengths, limit, claimed.__contains__)) is not None:
        claimed.add(position)
        order.append(position)
    walk = [start]
    while len(walk) < limit:
        walk.append(lengths.after(walk[-1]))
    expected = [each for each in walk[:limit] if is_waiting or each[0] == start[0]]
    assert order == [each for each in expected if each not in others]


# --- forgetting ---


@given(st.booleans(), st.integers(0, 8), st.integers(0, 8), st.integers(0, 12))
@tries(150)
def test_filling_begins_again_at_what_is_gone_if_it_was_on_the_way(is_waiting, offered, more, gone):
    lengths = EpochLengths(5)
    walk = [(epoch, step) for epoch in range(5) for step in range(5)]
    cursor = new_cursor("k", "c", (0, 0), is_waiting, lengths)
    cursor.offered, cursor.fill = walk[offered], walk[offered + more]
    forget_from(cursor, walk[gone])
    on_the_way = offered <= gone < offered + more
    assert cursor.fill == (walk[gone] if on_the_way else walk[offered + more])
    assert (cursor.next, cursor.offered) == ((0, 0), walk[offered])


def test_what_is_gone_is_claimed_again_and_the_rest_is_passed_by():
    lengths = EpochLengths(10)
    cursor = living((0, 0), lengths)
    claimed = set(fill_all(cursor, lengths, 6))
    claimed.remove((0, 2))
    forget_from(cursor, (0, 2))
    assert advance_fill(cursor, lengths, 6, claimed.__contains__) == (0, 2)
    claimed.add((0, 2))
    assert advance_fill(cursor, lengths, 7, claimed.__contains__) == (0, 6)


def test_of_several_that_are_gone_the_earliest_comes_first_whatever_their_order():
    lengths = EpochLengths(10)
    for gone in itertools.permutations([(0, 1), (0, 3), (0, 4)]):
        cursor = living((0, 0), lengths)
        claimed = set(fill_all(cursor, lengths, 6)) - set(gone)
        for position in gone:
            forget_from(cursor, position)
        again = []
        while (position := advance_fill(cursor, lengths, 6, claimed.__contains__)) is not None:
            claimed.add(position)
            again.append(position)
        assert again == [(0, 1), (0, 3), (0, 4)]


@given(
    st.lists(
        st.tuples(st.just("learn"), st.integers(0, 8), st.integers(0, 5))
        | st.tuples(st.just("forget"), st.integers(0, 8), st.integers(1, 9)),
        max_size=25,
    ),
    st.tuples(st.integers(0, 8), st.integers(0, 5)),
    st.tuples(st.integers(0, 8), st.integers(0, 5)),
)
@settings(deadline=None)
def test_distances_over_learnt_epochs_are_their_sums(events, one, other):
    lengths = EpochLengths(None)
    known: dict[int, int] = {}
    for kind, epoch, number in events:
        if kind == "forget":
            epochs = range(epoch, epoch + number)
            lengths.forget(epochs)
            known = {each: steps for each, steps in known.items() if each not in epochs}
        elif known.setdefault(epoch, number) == number:
            lengths.learn(epoch, number)
    start, end = sorted((one, other))
    between = sum(known.get(epoch, 0) for epoch in range(start[0], end[0]))
    assert lengths.distance(start, end) == between - start[1] + end[1]
    assert [lengths.steps(epoch) for epoch in range(9)] == [known.get(epoch) for epoch in range(9)]


def test_memory_of_epochs_is_bounded(monkeypatch):
    monkeypatch.setattr("prefetchd.ring.cursors.KEPT_LENGTHS", 10)
    lengths = EpochLengths(None)
    for epoch in range(100):
        lengths.learn(epoch, 2 + epoch % 3)
        assert len(lengths._learnt) <= 20
        assert len(lengths._before) <= 21
        for first in range(max(0, epoch - 9), epoch + 1):
            assert lengths.steps(first) == 2 + first % 3
            assert (
                lengths.distance((first, 1), (epoch + 1, 0))
                == sum(2 + each % 3 for each in range(first, epoch + 1)) - 1
            )
    lengths.forget(range(95, 1000))
    assert lengths.steps(94) == 3
    assert lengths.steps(95) is None
    lengths.learn(95, 7)
    assert lengths.distance((94, 0), (96, 0)) == 10
