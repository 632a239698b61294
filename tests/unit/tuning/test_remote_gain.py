"""When batches are worth being made elsewhere, and how many more there are then."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.tuning.remote_gain import LEAST_FILLING_S_A_GB, RECEIVING_S_A_GB, filling_s_a_gb, gain, pays
from tests.budgets import tries

GB = 1_000_000_000
costs = st.floats(0.01, 1e4)
cpus = st.floats(0.0, 1e4)


# --- what a GB costs ---


def test_a_gb_costs_what_was_filled_by_what_it_took():
    assert filling_s_a_gb(6_000_000, 2 * GB) == pytest.approx(3.0)
    assert filling_s_a_gb(500_000, 100_000_000) == pytest.approx(5.0)


def test_nobody_knows_before_half_a_second_of_filling():
    assert filling_s_a_gb(499_999, GB) is None
    assert filling_s_a_gb(500_000, GB) is not None


def test_nobody_knows_as_long_as_nothing_was_filled():
    assert filling_s_a_gb(10_000_000, 0) is None
    assert filling_s_a_gb(0, 0) is None


# --- whether it pays ---


def test_what_takes_twice_as_long_as_receiving_pays():
    assert pays(LEAST_FILLING_S_A_GB)
    assert not pays(LEAST_FILLING_S_A_GB - 0.001)
    assert pays(3.0, 2.9)
    assert not pays(3.0, 3.1)


def test_what_nobody_knows_does_not_pay():
    assert not pays(None)


@given(costs)
@tries(100)
def test_whatever_pays_takes_longer_to_fill_than_to_receive(cost):
    if pays(cost):
        assert cost > 2 * RECEIVING_S_A_GB
        assert gain(cost, 1, 1) > 1.5


# --- how much ---


@pytest.mark.parametrize(
    ("cost", "local", "remote", "expected"),
    [
        (5.0, 1, 1, 1.5),
        (5.0, 2, 4, 2.0),
        (25.0, 4, 40, 10.0),
        (RECEIVING_S_A_GB, 1, 100, 1.0),
        (7.2, 8, 0, 1.0),
    ],
)
def test_the_gain_is_what_the_machines_beside_this_one_spare_it(cost, local, remote, expected):
    assert gain(cost, local, remote) == pytest.approx(expected)


@given(costs, cpus, cpus, cpus)
@tries(200)
def test_more_cpus_elsewhere_never_make_less(cost, local, some, more):
    assert gain(cost, local, some + more) >= gain(cost, local, some)


@given(costs, costs, cpus, cpus)
@tries(200)
def test_what_takes_longer_to_fill_never_gains_less(cost, other, local, remote):
    slow, fast = max(cost, other), min(cost, other)
    assert gain(slow, local, remote) >= gain(fast, local, remote)


@given(costs, cpus, cpus)
@tries(200)
def test_a_gain_is_no_loss_and_no_more_than_the_cpus_are(cost, local, remote):
    found = gain(cost, local, remote)
    assert 1.0 <= found <= 1.0 + remote / max(1.0, local)


@given(st.floats(0.01, RECEIVING_S_A_GB), cpus, cpus)
@tries(100)
def test_what_is_received_no_faster_than_filled_gains_nothing(cost, local, remote):
    assert gain(cost, local, remote) == 1.0


def test_a_machine_without_a_cpu_to_spare_counts_as_one():
    assert gain(LEAST_FILLING_S_A_GB, 0, 2) == gain(LEAST_FILLING_S_A_GB, 1, 2)
