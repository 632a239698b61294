"""Bars of the last minute, from messages of a trace."""

from __future__ import annotations

from prefetchd.dashboard.lanes import MOST_BARS, Lanes
from prefetchd.wire.messages import TRACED_FILL, TRACED_WAIT, TraceEvents

NAMES = {"streams": (3,), "names": (b"train",)}


def test_bars_have_their_lane_age_and_label():
    lanes = Lanes()
    fill = (TRACED_FILL, 3, 2, 0, 7, 0, 8, 0, 40_000_000, 2_000_000)
    wait = (TRACED_WAIT, 3, 4711, 1, 9, 0, 0, 0, 45_000_000, 500_000)
    lanes.add(TraceEvents((fill, wait), **NAMES))
    assert lanes.of("train", 50.0) == [
        ["task", "worker 2", 10.0, 2.0, "0:7"],
        ["wait", "trainer 4711", 5.0, 0.5, "1:9"],
    ]
    assert lanes.of("other", 50.0) == []


def test_bars_older_than_a_minute_are_left_out():
    lanes = Lanes()
    lanes.add(TraceEvents(((TRACED_FILL, 3, 2, 0, 7, 0, 8, 0, 0, 1_000_000),), **NAMES))
    assert len(lanes.of("train", 60.5)) == 1
    assert lanes.of("train", 61.5) == []


def test_bars_are_bounded_and_streams_forgotten():
    lanes = Lanes()
    rows = tuple((TRACED_FILL, 3, 2, 0, step, 0, 8, 0, step, 1) for step in range(MOST_BARS + 50))
    lanes.add(TraceEvents(rows, **NAMES))
    assert len(lanes.of("train", 1.0)) == MOST_BARS
    lanes.forget(set())
    assert lanes.of("train", 1.0) == []


def test_rows_of_another_length_are_left_out():
    lanes = Lanes()
    lanes.add(TraceEvents(((1, 2),), **NAMES))
    assert lanes.of("train", 1.0) == []
