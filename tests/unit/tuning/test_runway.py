"""Filling stops when what is ready lasts long enough at the trainer's pace."""

from __future__ import annotations

import pytest

from prefetchd.tuning.runway import enough_batches, few_batches


@pytest.mark.parametrize(
    ("workers", "pace", "supply", "pause", "busy", "expected"),
    [
        pytest.param(2, 0.0, 500.0, 0.0, False, 8, id="nothing was taken yet"),
        pytest.param(16, 0.0, 500.0, 0.0, False, 64, id="nothing was taken yet, many workers"),
        pytest.param(2, 10.0, 500.0, 0.0, False, 300, id="half a minute"),
        pytest.param(2, 10.0, 500.0, 0.0, True, 50, id="a trainer that has the CPUs"),
        pytest.param(16, 0.1, 500.0, 0.0, False, 64, id="a few for each worker"),
        pytest.param(2, 10.0, 5.0, 300.0, False, 1500, id="a long pause, and workers that are slower"),
        pytest.param(2, 10.0, 12.0, 300.0, False, 300, id="a long pause, and workers that are faster"),
    ],
)
def test_enough_is_what_lasts(workers, pace, supply, pause, busy, expected):
    assert enough_batches(workers, pace, supply, pause, trainers_are_busy=busy) == expected


def test_few_are_some_for_each_worker():
    assert [few_batches(each) for each in (1, 2, 4)] == [8, 8, 16]
