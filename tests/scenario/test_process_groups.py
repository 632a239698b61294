"""What the user's code does to its process group, or starts and forgets, reaches no other stream, and ends with the
daemon, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import PrefetchdError

from tests.scenario.datasets import Made, Numbers
from tests.scenario.waiting import is_gone, stream_when, until, worker_pids

STARTS = pytest.mark.parametrize("start", ["fork", "exec"])
MARK = "left behind by a worker"
SLEEPER = "import os, sys, time; len(sys.argv) > 3 and os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"


class SignalsItsGroup:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, index: int) -> int:
        if index == 9:
            os.killpg(0, self.number)
            # It is this one's, too.
            time.sleep(1)
        return index


class LeavesProcesses:
    """Each worker leaves two that nobody waits for: one in its session, one in a session of its own."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.pid = 0

    def __call__(self, index: int) -> int:
        if self.pid != os.getpid():
            self.pid = os.getpid()
            for more in ([], ["own session"]):
                command = [sys.executable, "-c", SLEEPER, MARK, self.directory, *more]
                left = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
                pid = int(left.stdout.readline())
                with open(f"{self.directory}/{pid}", "w"):
                    pass
        return index


@STARTS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP], ids=lambda number: number.name)
def test_a_dataset_that_signals_its_process_group_ends_neither_daemon_nor_other_streams(
    daemon, monkeypatch, start, number
):
    monkeypatch.setenv("PREFETCHD_START", start)
    # Under nohup it is ignored, here and in whatever is started from here.
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        _signals_its_process_group(daemon, number)
    finally:
        signal.signal(signal.SIGHUP, former)


def _signals_its_process_group(daemon, number):
    daemon.start()
    pid = daemon.pid
    with PrefetchLoader(Numbers(24), batch_size=4, num_workers=1, stream="beside it") as beside:
        assert len(list(beside)) == 6
        before = stream_when(daemon, "beside it")
        dataset = Made(SignalsItsGroup(number))
        with (
            PrefetchLoader(dataset, batch_size=4, num_workers=1, stream="signals") as loader,
            pytest.raises(PrefetchdError),
        ):
            list(loader)
        assert len(list(beside)) == 6
        after = stream_when(daemon, "beside it")
    assert daemon.pid == pid
    deaths = ("worker_deaths", "zygote_deaths")
    assert [after[key] for key in deaths] == [before[key] for key in deaths]


def left_behind(directory) -> list[psutil.Process]:
    found = []
    for name in os.listdir(directory):
        try:
            process = psutil.Process(int(name))
            if MARK in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.fixture
def directory(tmp_path):
    made = tmp_path / "left"
    made.mkdir()
    yield made
    for process in left_behind(made):
        process.kill()


def stop(daemon) -> None:
    daemon.command("stop")


def kill(daemon) -> None:
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def evict(daemon) -> None:
    daemon.command("evict", "leaves", "--force")


def kill_workers(daemon) -> None:
    """And stop: what dead workers left is not forgotten."""
    for pid in worker_pids(daemon, "leaves"):
        os.kill(pid, signal.SIGKILL)
    stop(daemon)


def kill_zygotes(daemon) -> None:
    for process in daemon.processes():
        if process.name() == "prefetchd-zyg":
            process.kill()


@STARTS
@pytest.mark.parametrize("end", [stop, kill, evict, kill_workers, kill_zygotes], ids=lambda end: end.__name__)
def test_what_workers_have_started_ends_with_what_they_were_for(daemon, monkeypatch, directory, start, end):
    monkeypatch.setenv("PREFETCHD_START", start)
    daemon.start()
    dataset = Made(LeavesProcesses(str(directory)))
    loader = PrefetchLoader(dataset, batch_size=4, num_workers=1, stream="leaves", buffer=6)
    try:
        assert len(next(iter(loader))) == 4
        until(lambda: len(left_behind(directory)) >= 2, "workers have started processes")
        there = left_behind(directory)
        if (start, end) == ("fork", kill_zygotes):
            # Who would be given what has left the session of a dead trainer's fork is not ours.
            there = [process for process in there if "own session" not in process.cmdline()]
        end(daemon)
        until(lambda: all(is_gone(process.pid) for process in there), "they are gone")
    finally:
        loader.close()
        if end is kill:
            # It takes away what the dead one has left.
            daemon.start()
