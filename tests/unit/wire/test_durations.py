"""How long things took: what one process counts and another adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefetchd.wire.durations import BOUNDS_S, Durations


@given(st.lists(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1000)))))
def test_what_is_taken_and_included_is_what_was_added(turns):
    worker, daemon, expected = Durations(), Durations(), Durations()
    for turn in turns:
        for duration_us, times in turn:
            worker.add(duration_us, times)
            expected.add(duration_us, times)
        daemon.include(worker.take())
    assert daemon.counts == expected.counts
    assert daemon.total_us == expected.total_us
    assert worker.take() == (0,)


def test_a_bound_is_included():
    found = Durations()
    for place, bound in enumerate(BOUNDS_S):
        found.add(round(bound * 1e6))
        assert found.counts[place] == 1
        found.add(round(bound * 1e6) + 1)
        assert found.counts[place + 1] == 1
        found.take()


@pytest.mark.parametrize("odd", [(), (5, 1), (5, len(BOUNDS_S) + 1, 1), (5, -1, 1), (5, 0, 1, 2)])
def test_what_none_has_taken_changes_nothing(odd):
    found = Durations()
    with pytest.raises(ValueError, match=r"durations|unpack"):
        found.include(odd)
    assert found.take() == (0,)
