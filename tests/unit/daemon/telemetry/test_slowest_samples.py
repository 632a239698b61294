"""Slowest samples, seen on a clock that the tests set."""

from __future__ import annotations

from prefetchd.daemon.telemetry.slowest_samples import KEPT_S, MOST_KEPT, SlowestSamples
from prefetchd.wire.worker_status import COLLATING, IDLE, LOADING, WorkerStatus


def at(index: int, since_s: float, phase: int = LOADING) -> WorkerStatus:
    return WorkerStatus(task=1, phase=phase, row=0, index=index, since_ns=int(since_s * 1e9))


def test_sample_seen_twice_is_listed_once_with_its_longest():
    slowest = SlowestSamples()
    slowest.see(1, at(7, 10.0), 10.5)
    slowest.see(1, at(7, 10.0), 12.5)
    (found,) = slowest.about(13.0)
    assert found == {"worker": 1, "index": 7, "phase": "loading", "lasted_s": 2.5, "ago_s": 0.5}


def test_only_the_slowest_are_kept_in_order():
    slowest = SlowestSamples()
    for index in range(3 * MOST_KEPT):
        slowest.see(1, at(index, 100.0 + index), 100.0 + index + (index * 7 % 24 + 1) / 10)
    found = [each["lasted_s"] for each in slowest.about(200.0)]
    assert [round(each, 1) for each in found] == [2.4, 2.3, 2.2, 2.1, 2.0, 1.9, 1.8, 1.7]


def test_idle_workers_and_unbegun_samples_are_left_out():
    slowest = SlowestSamples()
    slowest.see(1, at(7, 10.0, IDLE), 20.0)
    slowest.see(1, WorkerStatus(phase=COLLATING), 20.0)
    assert slowest.about(20.0) == []


def test_sample_older_than_an_hour_makes_room():
    slowest = SlowestSamples()
    for index in range(MOST_KEPT):
        slowest.see(1, at(index, 10.0 + index), 30.0)
    assert slowest.about(31.0 + KEPT_S) == []
    slowest.see(1, at(99, 5000.0), 5000.1)
    assert [each["index"] for each in slowest.about(5001.0)] == [99]
