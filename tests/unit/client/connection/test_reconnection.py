"""Coming back when not even a process can be started, or there is no room for a socket."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time

import pytest
from prefetchd_client.connection import autostart, reconnection
from prefetchd_client.connection.autostart import MOST_FAILED_STARTS
from prefetchd_client.connection.reconnection import Reconnection

from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import runtime_paths


@pytest.fixture
def paths(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    return runtime_paths(directory / "d.sock", {"XDG_STATE_HOME": str(tmp_path)})


@pytest.fixture
def steps(monkeypatch):
    """steps(found) makes steps, without waiting in between, until there is an error or a connection (it is closed)."""
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])

    def go(found, most=100):
        pauses = []
        for _ in range(most):
            sock = found.step()
            if sock is not None:
                sock.close()
                break
            if found.error is not None:
                break
            pauses.append(found.pause_s)
            now_s[0] += found.pause_s
        return pauses

    return go


def test_a_daemon_that_cannot_be_started_is_an_error_after_some_attempts(paths, steps, monkeypatch):
    attempts = []

    def fail(command, **_):
        attempts.append(command)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    found = Reconnection(paths, supervised=False)
    steps(found)
    assert len(attempts) == MOST_FAILED_STARTS
    assert "Resource temporarily unavailable" in str(found.error)
    assert isinstance(found.error, DaemonUnavailableError)
    other = LockFile(paths.start_lock)
    assert other.acquire(), "others may try"
    other.release()


def test_the_former_daemon_s_configuration_is_given_on(paths, steps, monkeypatch):
    commands = []

    def fail(command, **_):
        commands.append(command)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", fail)
    for config in (b"/a/streams.toml", b""):
        steps(Reconnection(paths, supervised=False, config=config))
    assert commands[0][-1] == "/a/streams.toml"
    assert commands[-1] == commands[0][:-1]


def test_pauses_grow_up_to_a_bound_while_a_supervisor_has_its_time(paths, steps):
    found = Reconnection(paths, supervised=True, managed=True)
    pauses = steps(found, 20)
    assert pauses == sorted(pauses)
    assert pauses[0] == reconnection.FIRST_PAUSE_S
    assert pauses[-1] == reconnection.LONGEST_PAUSE_S
    found.close()


class Ended:
    """A launch whose daemon is about to serve."""

    descriptors = ()

    def wait(self, timeout_s):
        return False

    def leave(self):
        pass


@pytest.mark.parametrize(
    ("managed", "grace_s"), [(True, reconnection.MANAGER_GRACE_S), (False, reconnection.SUPERVISOR_GRACE_S)]
)
def test_a_supervisor_has_its_time_once_an_outage(paths, monkeypatch, managed, grace_s):
    """Each daemon that died before it answered began the wait anew: two deaths took 20 s."""
    launched = []
    now_s = [1000.0]
    monkeypatch.setattr(reconnection.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(reconnection, "Launch", lambda where, config: launched.append(now_s[0]) or Ended())

    def try_until(found, until_s):
        while now_s[0] < until_s and not launched:
            found.step()
            now_s[0] += 0.1

    first = Reconnection(paths, supervised=True, managed=managed, lost_s=1000.0)
    try_until(first, 1000.0 + grace_s / 2)
    assert not launched
    first.close()
    # A daemon has come, and died before it said Welcome.
    second = Reconnection(paths, supervised=True, managed=managed, lost_s=1000.0)
    try_until(second, 1100.0)
    assert 1000.0 + grace_s <= launched[0] < 1000.0 + grace_s + 2 * reconnection.LONGEST_PAUSE_S
    second.abandon()


def test_nobody_at_a_terminal_is_waited_for_as_long_as_a_service_manager():
    """A first batch from nothing and 3 s are to be enough for any two deaths."""
    assert reconnection.SUPERVISOR_GRACE_S < 3 < 5 < reconnection.MANAGER_GRACE_S


def test_a_directory_that_is_gone_is_made_again(paths, steps, monkeypatch):
    shutil.rmtree(paths.socket.parent)
    launched = []

    def launch(where, config):
        launched.append(where)
        raise DaemonUnavailableError("enough")

    monkeypatch.setattr(reconnection, "Launch", launch)
    found = Reconnection(paths, supervised=False)
    steps(found)
    assert launched
    assert str(found.error) == "enough"


def test_a_directory_that_others_can_write_to_is_told(paths, steps):
    paths.socket.parent.chmod(0o777)
    found = Reconnection(paths, supervised=False)
    steps(found)
    assert "belongs to uid" in str(found.error)


@pytest.fixture
def launches(monkeypatch):
    """Of the processes that stand for a daemon's start: what is executed in its place is the list's first."""
    execute, started = subprocess.Popen, []
    commands = [["sleep", "600"]]

    def start(_, **options):
        options.pop("env")
        started.append(execute(commands[0], **options))
        if commands[0] == ["true"]:
            # The clock of these tests does not wait for it.
            os.waitid(os.P_PID, started[-1].pid, os.WEXITED | os.WNOWAIT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield commands, started
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_forked_child_keeps_nothing_of_a_start_that_is_under_way(paths, launches):
    found = Reconnection(paths, supervised=False)
    assert found.step() is None
    ((_, (starting,))) = launches
    other = LockFile(paths.start_lock)
    assert not other.acquire()
    assert set(found.descriptors) >= {starting.stdout.fileno()}
    # What the child does with its copies, done with the only ones.
    found.abandon()
    assert starting.stdout.closed
    assert starting.poll() is None, "it goes on"
    assert paths.start_lock.exists(), "its file is the parent's to remove"
    assert other.acquire()
    other.release()


def test_a_launch_that_takes_longer_to_end_than_its_daemon_to_serve_is_not_waited_for(paths, steps, launches):
    """As `run --detach` does: next() must not wait for its end, nor a first batch."""
    found = Reconnection(paths, supervised=False)
    steps(found, 1)
    _, (starting,) = launches
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as serving:
        serving.bind(str(paths.socket))
        serving.listen()
        pauses = steps(found, 20)
    assert len(pauses) <= 1
    assert starting.poll() is None
    assert not paths.start_lock.exists()
    starting.kill()
    starting.wait()
    autostart.reap_launches()
    assert autostart._launched == []


def test_a_launch_that_never_ends_is_killed_and_tried_again(paths, steps, launches):
    found = Reconnection(paths, supervised=False)
    steps(found, 100_000)
    assert isinstance(found.error, DaemonUnavailableError)
    _, started = launches
    assert len(started) == MOST_FAILED_STARTS
    assert all(process.returncode == -signal.SIGKILL for process in started)


def test_launches_that_end_and_leave_no_daemon_are_told_in_the_end(paths, steps, launches):
    launches[0][:] = [["true"]]
    found = Reconnection(paths, supervised=False)
    steps(found, 100_000)
    assert "end at once" in str(found.error)
