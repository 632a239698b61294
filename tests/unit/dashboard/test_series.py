"""An hour of points, on a clock that the tests set."""

from __future__ import annotations

import itertools

from prefetchd.dashboard.series import LEVELS, Series


def point(at_s: float, made: float | None = 1.0, limit: str = "none") -> tuple:
    return (at_s, 0.5, made, 2.0, 0.1, 3, 1000, limit)


def test_resolution_decreases_with_age_and_ends_after_an_hour():
    series = Series()
    for second in range(2 * 3600):
        series.add(point(float(second)))
    times = [row[0] for row in series.rows()]
    assert times == sorted(set(times))
    assert times[-1] == 7199.0
    assert 3600 <= times[-1] - times[0] <= 3600 + LEVELS[-1][0]
    steps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert steps[-1] == 1.0
    assert steps[0] == 15.0
    assert len(times) < 600


def test_coarse_points_are_means_of_what_is_known():
    series = Series()
    for second in range(400):
        series.add(point(float(second), made=None if second % 2 else 4.0, limit="trainer"))
    old = series.rows()[0]
    assert old[2] == 4.0
    assert old[7] == "trainer"


def test_point_in_the_past_is_left_out():
    series = Series()
    series.add(point(10.0))
    series.add(point(9.0))
    assert [row[0] for row in series.rows()] == [10.0]


def test_points_of_a_coarse_history_are_kept_as_they_are():
    series = Series()
    for at in range(0, 3600, 10):
        series.add(point(float(at)))
    times = [row[0] for row in series.rows()]
    assert len(times) > 180
    assert times == sorted(set(times))
