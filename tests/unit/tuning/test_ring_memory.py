"""How much a ring may grow by itself, and whose ring gives how much."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from prefetchd.tuning.ring_memory import Free, who_gives
from tests.budgets import tries


def test_half_of_what_was_free_stays_free():
    assert Free(1000, 1000).to_grow_bytes == 500
    assert Free(550, 1000).to_grow_bytes == 50
    assert Free(200, 1000).to_grow_bytes == 0


def test_when_little_is_free_rings_give_back():
    assert Free(125, 1000).missing_bytes == 0
    assert Free(100, 1000).missing_bytes == 25


def test_who_has_most_to_spare_gives_first():
    assert who_gives(50, {1: 10, 2: 100, 3: 60}) == {2: 50}
    assert who_gives(120, {1: 10, 2: 100, 3: 60}) == {2: 100, 3: 20}
    assert who_gives(1000, {1: 10, 2: 0}) == {1: 10}
    assert who_gives(0, {1: 10}) == {}


@given(st.integers(0, 1000), st.dictionaries(st.integers(1, 5), st.integers(0, 300)))
@tries(100)
def test_as_much_as_is_missing_or_all_that_is_to_spare(missing, spare):
    given = who_gives(missing, spare)
    assert sum(given.values()) == min(missing, sum(spare.values()))
    assert all(0 < size <= spare[stream] for stream, size in given.items())
