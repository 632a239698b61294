"""What a service manager gives to a daemon and hears from it, over real sockets."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.messages import Welcome
from tests.scenario.datasets import Made
from tests.scenario.raw_peer import Peer, control_hello
from tests.scenario.test_printing_without_end import NEWLINES, Prints
from tests.scenario.waiting import stream_when, until

# Takes the place of what systemd does between fork and exec: the descriptor is the third one, and the pid is its own.
ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "prefetchd", "run"])
"""


@pytest.fixture
def manager(daemon):
    """A socket such as systemd's at NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(daemon.socket.with_name("notify")))
        sock.settimeout(30)
        yield sock


def run(daemon, *arguments, stderr=subprocess.DEVNULL, **variables):
    return subprocess.Popen(
        [sys.executable, "-m", "prefetchd", "run", *arguments],
        env=daemon.environment | variables,
        stderr=stderr,
    )


def said(manager):
    return manager.recv(4096).decode().split("\n")


def test_it_tells_that_it_is_ready_how_it_is_and_that_it_stops(daemon, manager):
    process = run(daemon, "--workers", "3", NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="900000")
    assert said(manager) == ["READY=1"]
    with Peer(daemon.socket) as peer:
        peer.say(control_hello())
        assert isinstance(peer.hear(), Welcome)
    lines = said(manager)
    assert "WATCHDOG=1" in lines
    assert "STATUS=0 streams, 0 of 3 workers busy" in lines
    assert said(manager) == ["WATCHDOG=1"]
    process.send_signal(signal.SIGTERM)
    heard = []
    while "STOPPING=1" not in heard:
        heard += said(manager)
    assert process.wait(30) == 0


@pytest.mark.parametrize("journal", [True, False], ids=["the journal", "another file"])
def test_the_journal_gets_each_line_with_its_level(daemon, manager, tmp_path, journal):
    with (tmp_path / "journal").open("w+b") as stream:
        stated = os.fstat(stream.fileno())
        process = run(
            daemon,
            stderr=stream,
            NOTIFY_SOCKET=manager.getsockname(),
            JOURNAL_STREAM=f"{stated.st_dev}:{stated.st_ino + (not journal)}",
        )
        assert said(manager) == ["READY=1"]
        process.terminate()
        assert process.wait(30) == 0
        lines = (tmp_path / "journal").read_text().splitlines()
    assert lines
    assert {line.partition("{")[0] for line in lines} == {"<6>" if journal else ""}


def test_a_daemon_that_hangs_does_not_say_that_it_goes_on(daemon, manager):
    process = run(daemon, NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="300000")
    until(lambda: "WATCHDOG=1" in said(manager), "it goes on")
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    manager.setblocking(False)
    # What was sent before is read first; then nothing comes.
    with contextlib.suppress(BlockingIOError):
        while said(manager):
            pass
    with pytest.raises(BlockingIOError):
        said(manager)
    process.send_signal(signal.SIGCONT)
    manager.settimeout(30)
    assert said(manager)
    process.terminate()
    assert process.wait(30) == 0


def test_the_watchdog_does_not_fire_for_a_dataset_that_prints_without_end(daemon, manager):
    within_s = 1.5
    process = run(daemon, NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC=f"{within_s * 1e6:.0f}")
    assert said(manager) == ["READY=1"]
    with PrefetchLoader(Made(Prints(NEWLINES), 4), batch_size=4, num_workers=1, stream="prints") as loader:
        next(iter(loader))
        before = stream_when(daemon, "prints", lambda it: it["output_lines_left_out"])["output_lines_left_out"]
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while said(manager):
                pass
        manager.settimeout(30)
        heard_s = [time.monotonic()]
        while len(heard_s) < 6:
            if "WATCHDOG=1" in said(manager):
                heard_s.append(time.monotonic())
        assert max(later - sooner for sooner, later in itertools.pairwise(heard_s)) < within_s
        stream_when(daemon, "prints", lambda it: it["output_lines_left_out"] > before, "it printed meanwhile")
    process.terminate()
    assert process.wait(30) == 0


def test_an_abstract_address_and_a_manager_that_is_gone(daemon):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0prefetchd-test-" + str(os.getpid()))
        sock.settimeout(30)
        process = run(daemon, NOTIFY_SOCKET="@" + sock.getsockname()[1:].decode(), WATCHDOG_USEC="300000")
        assert said(sock) == ["READY=1"]
    daemon.command("status")
    process.terminate()
    assert process.wait(30) == 0


def test_a_detached_daemon_tells_nobody(daemon, manager):
    """It may have been started by a trainer that is itself somebody's service."""
    daemon.environment["NOTIFY_SOCKET"] = manager.getsockname()
    daemon.start()
    daemon.command("stop")
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(1)


def test_the_watchdog_of_another_process_is_not_its_own(daemon, manager):
    process = run(daemon, NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="1000", WATCHDOG_PID="1")
    assert said(manager) == ["READY=1"]
    assert said(manager)[0].startswith("STATUS=")
    process.terminate()
    assert said(manager) == ["STOPPING=1"]
    assert process.wait(30) == 0


# --- LISTEN_FDS ---


def activate(daemon, listening, **variables):
    return subprocess.Popen(
        [sys.executable, "-c", ACTIVATED, str(listening.fileno())],
        env=daemon.environment | {"LISTEN_FDS": "1"} | variables,
        pass_fds=[listening.fileno()],
        stderr=subprocess.PIPE,
        text=True,
    )


def listening_at(path: Path, kind=socket.SOCK_SEQPACKET) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    sock.listen(8)
    return sock


def test_who_came_before_the_daemon_is_served_and_the_socket_stays(daemon):
    with listening_at(daemon.socket) as listening, Peer(daemon.socket) as early:
        early.say(control_hello())
        process = activate(daemon, listening)
        assert isinstance(early.hear(), Welcome)
        assert daemon.command("status").returncode == 0
        process.terminate()
        assert process.wait(30) == 0
        assert daemon.socket.exists()
        with Peer(daemon.socket) as late:
            late.say(control_hello())
            again = activate(daemon, listening)
            assert isinstance(late.hear(), Welcome)
            again.terminate()
            assert again.wait(30) == 0
        for each in (process, again):
            each.stderr.close()
    daemon.socket.unlink()


def test_the_place_is_the_one_that_was_handed_over(daemon):
    elsewhere = daemon.socket.with_name("elsewhere.sock")
    with listening_at(elsewhere) as listening:
        process = activate(daemon, listening)
        with Peer(elsewhere) as peer:
            peer.say(control_hello())
            assert isinstance(peer.hear(), Welcome)
        found = daemon.command("status", "--socket", str(elsewhere))
        assert "healthy" in found.stdout
        process.terminate()
        assert process.wait(30) == 0
        process.stderr.close()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_what_is_of_no_use_is_an_error(daemon, kind):
    path = daemon.socket.with_name("handed.sock")
    with listening_at(path, kind) as listening:
        process = activate(daemon, listening, LISTEN_FDS="1" if kind == socket.SOCK_STREAM else "2")
        _, error = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "allowed: " in error


def test_descriptors_for_another_process_are_left_alone(daemon):
    process = run(daemon, LISTEN_FDS="1", LISTEN_PID="1")
    until(daemon.socket.exists, "it listens on its own")
    process.terminate()
    assert process.wait(30) == 0
