"""What receiving costs is learned from what bridges and the raylet have used."""

from __future__ import annotations

import pytest

from prefetchd.tuning.receiving_cost import KNOWN_AFTER_BYTES, LEAST_BYTES, MOST_S_A_GB, ReceivingCost
from prefetchd.tuning.remote_gain import LEAST_FILLING_S_A_GB, LEAST_RATIO

GB = 10**9


def test_what_is_usual_counts_until_much_was_received():
    cost = ReceivingCost()
    cost.used(KNOWN_AFTER_BYTES - 1, 10**9, 0)
    assert cost.learned_s_a_gb is None
    assert cost.least_filling_s_a_gb == LEAST_FILLING_S_A_GB


def test_the_bound_follows_what_bridge_and_raylet_use():
    cost = ReceivingCost()
    cost.used(0, 0, 50_000_000)
    cost.used(3 * GB, 1_350_000, 55_550_000)
    assert cost.learned_s_a_gb == pytest.approx((1.35 + 5.55) / 3)
    assert cost.least_filling_s_a_gb == pytest.approx(LEAST_RATIO * 2.3)


def test_a_raylet_that_serves_two_bridges_counts_once():
    cost = ReceivingCost()
    cost.used(0, 0, 1_000_000)
    cost.used(2 * GB, 0, 3_000_000)
    cost.used(2 * GB, 0, 5_000_000)
    cost.used(0, 0, 5_000_000)
    assert cost.learned_s_a_gb == pytest.approx(1.0)


def test_a_raylet_that_begins_again_is_counted_from_there():
    cost = ReceivingCost()
    cost.used(0, 0, 90_000_000)
    cost.used(2 * GB, 2_000_000, 100_000)
    cost.used(2 * GB, 2_000_000, 2_100_000)
    assert cost.learned_s_a_gb == pytest.approx(1.5)


def test_what_waiting_processes_use_counts_not():
    cost = ReceivingCost()
    cost.used(2 * GB, 2_000_000, 1_000_000)
    cost.used(LEAST_BYTES - 1, 9_000_000, 90_000_000)
    cost.used(2 * GB, 2_000_000, 90_000_000)
    assert cost.learned_s_a_gb == pytest.approx(1.0)


def test_no_more_is_learned_than_may_be():
    cost = ReceivingCost()
    cost.used(4 * GB, 90_000_000, 0)
    assert cost.learned_s_a_gb == MOST_S_A_GB


def test_what_was_long_ago_counts_less():
    cost = ReceivingCost()
    for _ in range(20):
        cost.used(GB, 3_000_000, 0)
    for _ in range(20):
        cost.used(GB, 1_000_000, 0)
    assert cost.learned_s_a_gb == pytest.approx(1.0, abs=0.4)
