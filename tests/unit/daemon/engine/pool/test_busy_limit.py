"""Fewer workers are busy after kills for memory, and more again when there were none for long."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.pool.busy_limit import MOST_RAISES_AFTER_S, RAISES_AFTER_S, BusyLimit


def test_each_kill_lowers_it_by_one_and_one_is_left():
    limit = BusyLimit(3)
    assert [limit.lower(3, 0.0) for _ in range(3)] == [True, True, False]
    assert (limit.now, limit.is_lowered) == (1, True)


@pytest.mark.parametrize(("asked", "seen"), [(4, [3, 4, 4]), (0, [6, 7, 0])], ids=["a number", "any number"])
def test_it_comes_back_step_by_step_without_kills(asked, seen):
    """Found as one hungry sample that left a daemon of many streams with one busy worker, for good."""
    limit = BusyLimit(asked)
    for _ in range(2 if asked else 3):
        limit.lower(8, 10.0)
    assert not limit.tick(10.0 + RAISES_AFTER_S - 1)
    found = []
    for count in range(1, 4):
        limit.tick(10.0 + count * RAISES_AFTER_S)
        found.append(limit.now)
    assert found == seen
    assert not limit.is_lowered


def test_a_kill_after_a_raise_makes_the_next_one_wait_longer():
    limit, now_s, waits = BusyLimit(2), 0.0, []
    limit.lower(2, now_s)
    for _ in range(6):
        since_s = now_s
        while not limit.tick(now_s):
            now_s += RAISES_AFTER_S / 2
        waits.append(now_s - since_s)
        limit.lower(2, now_s)
    assert waits[:3] == [RAISES_AFTER_S, 2 * RAISES_AFTER_S, 4 * RAISES_AFTER_S]
    assert waits[-2:] == [MOST_RAISES_AFTER_S] * 2


def test_reset_forgets_all():
    limit = BusyLimit(2)
    limit.lower(2, 0.0)
    limit.reset()
    assert (limit.now, limit.is_lowered) == (2, False)
