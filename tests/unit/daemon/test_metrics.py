"""The status segment as the daemon writes it and status reads it."""

from __future__ import annotations

import os
import time

import pytest

from prefetchd.cli.snapshot import read_report
from prefetchd.daemon.metrics import StatusSegment
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import runtime_paths


@pytest.fixture
def paths(tmp_path):
    return runtime_paths(tmp_path / "d.sock")


@pytest.fixture
def segment(paths):
    found = StatusSegment(paths.status_segment, 1)
    yield found
    found.close()
    assert not os.path.exists("/dev/shm" + paths.status_segment)


def snapshot(count, padding=""):
    streams = [{"name": str(number), "padding": padding} for number in range(count)]
    return {"daemon": {"pid": os.getpid(), "start_ticks": process_stat(os.getpid()).start_ticks}, "streams": streams}


def test_what_was_written_last_is_read(segment, paths):
    for count in range(5):
        segment.write(snapshot(count))
        report = read_report(paths)
        assert report.state == "running"
        assert len(report.snapshot["streams"]) == count
        assert "streams_left_out" not in report.snapshot


def test_more_streams_than_there_is_room_for_are_counted(segment, paths):
    segment.write(snapshot(3000, "x" * 1000))
    found = read_report(paths).snapshot
    shown = len(found["streams"])
    assert 300 < shown < 1100
    assert [stream["name"] for stream in found["streams"]] == list(map(str, range(shown)))
    assert found["streams_left_out"] == 3000 - shown


def test_a_beat_makes_the_report_fresh(segment, paths, monkeypatch):
    segment.write(snapshot(0))
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns + 60 * 10**9)
    assert read_report(paths).state == "hanging"
    segment.beat()
    assert read_report(paths).state == "running"


def test_a_new_daemon_replaces_what_a_former_one_left(paths):
    former = StatusSegment(paths.status_segment, 1)
    former.write(snapshot(2))
    segment = StatusSegment(paths.status_segment, 2)
    try:
        segment.write(snapshot(1))
        former.write(snapshot(2))
        assert len(read_report(paths).snapshot["streams"]) == 1
    finally:
        segment.close()
        former.close()


def test_the_segment_is_private(segment, paths):
    assert os.stat("/dev/shm" + paths.status_segment).st_mode & 0o777 == 0o600
