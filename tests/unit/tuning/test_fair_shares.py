"""Streams that share a cluster get as much as each other, as far as they want it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.tuning.fair_shares import fair_shares
from tests.budgets import tries


@pytest.mark.parametrize(
    ("total", "wanted", "shares"),
    [
        (8, [8, 8], [4, 4]),
        (8, [2, 8], [2, 6]),
        (3, [4, 4], [2, 1]),
        (9, [2, 3], [2, 3]),
        (0, [1], [0]),
        (5, [0, 9], [0, 5]),
    ],
)
def test_shares_are_even_as_far_as_they_are_wanted(total, wanted, shares):
    assert fair_shares(total, wanted) == shares


@given(st.integers(0, 200), st.lists(st.integers(0, 64), max_size=8))
@tries(100)
def test_all_are_given_out_and_no_stream_is_worse_off(total, wanted):
    shares = fair_shares(total, wanted)
    assert sum(shares) == min(total, sum(wanted))
    assert all(share <= most for share, most in zip(shares, wanted))
    least = min((share for share, most in zip(shares, wanted) if share < most), default=None)
    assert least is None or max(shares) <= least + 1
