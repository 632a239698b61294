"""The status segment as the daemon writes it and status reads it."""

from __future__ import annotations

import errno
import os
import time

import pytest

from prefetchd.daemon.segments.status_segment import StatusSegment
from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import NoSpaceError
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import runtime_paths


@pytest.fixture
def paths(tmp_path):
    return runtime_paths(tmp_path / "d.sock")


@pytest.fixture
def segment(paths):
    found = StatusSegment(paths, 1)
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
    former = StatusSegment(paths, 1)
    former.write(snapshot(2))
    segment = StatusSegment(paths, 2)
    try:
        segment.write(snapshot(1))
        former.write(snapshot(2))
        assert len(read_report(paths).snapshot["streams"]) == 1
    finally:
        segment.close()
        former.close()


def test_the_segment_is_private(segment, paths):
    assert os.stat("/dev/shm" + paths.status_segment).st_mode & 0o777 == 0o600


def test_a_name_that_was_removed_is_made_again_with_what_was_told_last(segment, paths):
    segment.write(snapshot(2))
    assert not segment.restore_name()
    before = len(os.listdir("/proc/self/fd"))
    os.unlink("/dev/shm" + paths.status_segment)
    assert read_report(paths).state == "absent"
    assert segment.restore_name()
    assert len(read_report(paths).snapshot["streams"]) == 2
    segment.write(snapshot(1))
    assert len(read_report(paths).snapshot["streams"]) == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_name_that_another_has_taken_is_left_to_it(segment, paths):
    os.unlink("/dev/shm" + paths.status_segment)
    other = StatusSegment(paths, 2)
    other.write(snapshot(1))
    with pytest.raises(FileExistsError):
        segment.restore_name()
    segment.close()
    assert len(read_report(paths).snapshot["streams"]) == 1
    other.close()


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_shared_memory_is_an_error_that_says_so_and_leaves_nothing(paths, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpaceError, match="--shm-size"):
        StatusSegment(paths, 1)
    assert not os.path.exists("/dev/shm" + paths.status_segment)


def test_streams_are_left_out_when_there_is_no_memory_for_them(segment, paths, monkeypatch):
    segment.write(snapshot(3))
    monkeypatch.setattr(os, "posix_fallocate", full)
    segment.write(snapshot(400, "x" * 1000))
    found = read_report(paths).snapshot
    assert 0 < len(found["streams"]) < 64
    assert found["streams_left_out"] == 400 - len(found["streams"])
    monkeypatch.undo()
    segment.write(snapshot(400, "x" * 1000))
    assert len(read_report(paths).snapshot["streams"]) == 400


def test_it_takes_no_more_memory_than_it_needs(segment, paths):
    """Shared memory may be small: what is not written yet is not there yet."""
    segment.write(snapshot(3))
    assert os.stat("/dev/shm" + paths.status_segment).st_blocks * 512 <= 256 << 10
