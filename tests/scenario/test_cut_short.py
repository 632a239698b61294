"""Somebody of the same user makes shared memory shorter under its users: it is said in words who suffers, and why."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import PrefetchdError

from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import StreamFailedError, WorkerDiedError
from prefetchd.wire.status_layout import STATUS_BYTES
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import is_gone, report_when, stream_when, until


def is_at_rest(stream: dict) -> bool:
    ring = stream["ring"]
    return ring and ring["ready"] and not ring["filling"] and not any(each["busy"] for each in stream["workers"])


@pytest.mark.parametrize("length", [0, 1, 5000, STATUS_BYTES - 1])
def test_a_status_segment_that_is_cut_short_is_mended(shared_daemon, length):
    if not shared_daemon.socket.exists():
        shared_daemon.start()
    report = report_when(shared_daemon, lambda report: report.snapshot, "it tells")
    pid, path = report.snapshot["daemon"]["pid"], "/dev/shm" + shared_daemon.paths.status_segment
    os.truncate(path, length)
    until(lambda: os.stat(path).st_size == STATUS_BYTES, "it is as long as before")
    again = report_when(shared_daemon, lambda report: report.state == "running", "it tells again")
    assert again.snapshot["daemon"]["pid"] == pid


def test_a_ring_that_is_cut_short_fails_its_stream_alone(shared_daemon):
    with PrefetchLoader(Numbers(24), batch_size=4, stream="beside it", num_workers=1) as beside:
        assert len(list(beside)) == 6
        with PrefetchLoader(Numbers(24), batch_size=4, stream="cut", num_workers=1) as loader:
            iterator = iter(loader)
            next(iterator)
            # At rest: nobody is at the memory at this very moment.
            found = stream_when(shared_daemon, "cut", is_at_rest)
            pid = shared_daemon.pid
            os.truncate(found["ring"]["directory"] + found["ring"]["segment"], 4096)
            with pytest.raises(StreamFailedError, match="shorter than its"):
                list(iterator)
        assert len(list(beside)) == 6
        assert shared_daemon.pid == pid
    with PrefetchLoader(Numbers(24), batch_size=4, stream="cut", num_workers=1) as again:
        assert len(list(again)) == 6


def test_a_ring_that_was_cut_short_while_no_daemon_lived_is_not_adopted(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(24), batch_size=4, stream="cut", num_workers=1) as loader:
        assert len(list(loader)) == 6
        found = stream_when(daemon, "cut", is_at_rest)
        daemon.kill_all()
        os.truncate(found["ring"]["directory"] + found["ring"]["segment"], 4096)
        daemon.start()
        assert "ring not adopted" in daemon.paths.log.read_text()
        assert read_report(daemon.paths).snapshot["streams"] == []
        with pytest.raises(PrefetchdError):
            list(loader)


class Rows:
    """Large enough that workers map it from the program."""

    def __init__(self) -> None:
        self.values = np.arange(1 << 21)

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> int:
        return self.values[1000 * index]


def test_a_program_that_is_cut_short_fails_its_stream_alone(shared_daemon, executed):
    """Its worker dies of the sample that is not there any more, which the error says."""
    with (
        PrefetchLoader(Numbers(24), batch_size=4, stream="beside it", num_workers=1) as beside,
        PrefetchLoader(Rows(), batch_size=4, stream="cut", num_workers=1, buffer=4) as loader,
    ):
        assert len(list(beside)) == 6
        iterator = iter(loader)
        next(iterator)
        stream_when(shared_daemon, "cut", is_at_rest)
        pid = shared_daemon.pid
        for name in shared_daemon.segments():
            if "-program-" in name and os.stat(f"/dev/shm/{name}").st_size > 1 << 21:
                os.truncate(f"/dev/shm/{name}", 4096)
        with pytest.raises(WorkerDiedError, match="killed by SIGBUS"):
            list(iterator)
        assert len(list(beside)) == 6
        assert shared_daemon.pid == pid


def test_a_daemon_that_dies_of_sigbus_says_where_in_its_log(daemon):
    daemon.start()
    pid = daemon.pid
    os.kill(pid, signal.SIGBUS)
    until(lambda: is_gone(pid), "it is dead")
    told = daemon.paths.log.read_text()
    assert "Fatal Python error: Bus error" in told
    assert "prefetchd/daemon/process/loop.py" in told
    daemon.start()
    assert daemon.pid != pid
