"""The report that status reads: how it tells running, hanging, dead and absent apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from prefetchd.status import snapshot
from prefetchd.status.snapshot import Report, read_report
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.status_layout import (
    HEAD_BYTES,
    STATUS_BYTES,
    StatusHead,
    copy_offset,
    encode_head,
    encode_snapshot,
)


@pytest.fixture
def paths(tmp_path):
    found = runtime_paths(tmp_path / "d.sock")
    yield found
    if os.path.exists("/dev/shm" + found.status_segment):
        os.unlink("/dev/shm" + found.status_segment)


def write(paths, *, pid=None, age_s=0.0, ticks=None, copies=(0, 1), current=0, damage=False):
    """A status segment as a daemon of that pid leaves it."""
    pid = os.getpid() if pid is None else pid
    stat = process_stat(pid)
    ticks = (stat.start_ticks if stat is not None else 0) if ticks is None else ticks
    data = bytearray(STATUS_BYTES)
    heartbeat_ns = time.monotonic_ns() - int(age_s * 1e9)
    head = encode_head(StatusHead(pid, 1, heartbeat_ns, current))
    data[: len(head)] = head
    for copy in copies:
        said = encode_snapshot({"copy": copy, "daemon": {"pid": pid, "start_ticks": ticks}})
        data[copy_offset(copy) : copy_offset(copy) + len(said)] = said
        if damage:
            data[copy_offset(copy) + 12] ^= 1
    with open("/dev/shm" + paths.status_segment, "wb") as file:
        file.write(data)


def test_without_a_segment_the_daemon_is_absent(paths):
    assert read_report(paths) == Report("absent")


def test_a_living_daemon_that_was_just_heard_of_is_running(paths):
    write(paths)
    report = read_report(paths)
    assert report.state == "running"
    assert report.snapshot["daemon"]["pid"] == os.getpid()
    assert 0 <= report.heartbeat_age_s < 3


@pytest.mark.parametrize("current", [0, 1])
def test_the_current_copy_counts(paths, current):
    write(paths, current=current)
    assert read_report(paths).snapshot["copy"] == current


def test_a_living_daemon_that_has_not_come_round_for_long_is_hanging(paths):
    write(paths, age_s=7.5)
    report = read_report(paths)
    assert report.state == "hanging"
    assert 7.5 <= report.heartbeat_age_s < 60


@pytest.mark.parametrize("age_s", [0.0, 100.0])
def test_a_daemon_without_a_process_is_dead_however_fresh_its_word(paths, age_s):
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    write(paths, pid=done.pid, age_s=age_s)
    assert read_report(paths).state == "dead"


def test_a_daemon_that_nobody_has_reaped_is_dead(paths):
    corpse = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, corpse.pid, os.WEXITED | os.WNOWAIT)
    write(paths, pid=corpse.pid)
    assert read_report(paths).state == "dead"
    corpse.wait()


def test_another_process_with_its_number_is_not_the_daemon(paths):
    write(paths, ticks=process_stat(os.getpid()).start_ticks - 1)
    assert read_report(paths).state == "dead"


def test_a_snapshot_that_is_never_whole_is_an_error(paths):
    write(paths, damage=True)
    with pytest.raises(ProtocolError, match="yet to say anything"):
        read_report(paths)


def test_a_daemon_that_has_not_said_anything_yet_is_an_error_that_says_so(paths):
    write(paths, copies=())
    with pytest.raises(ProtocolError, match="yet to say anything"):
        read_report(paths)


def test_what_is_no_status_segment_is_an_error(paths):
    with open("/dev/shm" + paths.status_segment, "wb") as file:
        file.write(b"SOMETHING" * STATUS_BYTES)
    with pytest.raises(ProtocolError, match="not a status segment"):
        read_report(paths)


@pytest.mark.parametrize("size", [0, HEAD_BYTES, STATUS_BYTES])
def test_one_that_is_being_made_is_waited_for(paths, size, monkeypatch):
    with open("/dev/shm" + paths.status_segment, "wb") as file:
        file.write(bytes(size))
    monkeypatch.setattr(snapshot.time, "sleep", lambda _: write(paths))
    assert read_report(paths).state == "running"


@pytest.mark.parametrize("size", [0, HEAD_BYTES, STATUS_BYTES])
def test_one_that_is_never_made_is_an_error(paths, size):
    with open("/dev/shm" + paths.status_segment, "wb") as file:
        file.write(bytes(size))
    with pytest.raises(ProtocolError, match="yet to say anything"):
        read_report(paths)


def test_reading_leaves_no_descriptor(paths):
    write(paths)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_report(paths)
    assert len(os.listdir("/proc/self/fd")) == before
