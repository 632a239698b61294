"""Reaching a daemon while others start, stop and stand in the way."""

from __future__ import annotations

import os
import socket
import stat
import sys

import pytest
from prefetchd_client.connection import autostart
from prefetchd_client.connection.autostart import connect, connect_or_start, start_daemon

from prefetchd.wire.errors import CallerError, DaemonUnavailableError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import runtime_paths


@pytest.fixture
def paths(tmp_path):
    tmp_path.chmod(0o700)
    return runtime_paths(tmp_path / "d.sock", {"XDG_STATE_HOME": str(tmp_path)})


@pytest.fixture
def serve(paths):
    """serve() listens on the socket, as a daemon that has come up does."""
    servers = []

    def listen(kind=socket.SOCK_SEQPACKET):
        server = socket.socket(socket.AF_UNIX, kind)
        server.bind(os.fspath(paths.socket))
        server.listen()
        servers.append(server)

    yield listen
    for server in servers:
        server.close()


@pytest.fixture
def starts(monkeypatch):
    """What is done instead of starting a daemon: the n-th start calls the n-th function of the list."""
    todo, done = [], []

    def start(paths):
        done.append(paths)
        todo[len(done) - 1]()

    monkeypatch.setattr(autostart, "start_daemon", start)
    return todo, done


def test_nobody_there_is_none(paths):
    assert connect(paths) is None


def test_a_dead_daemon_s_socket_is_none(paths, serve):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(os.fspath(paths.socket))
    assert connect(paths) is None


def test_a_daemon_that_serves_is_connected_to(paths, serve, starts):
    serve()
    connect_or_start(paths).close()
    assert starts[1] == []


def test_one_is_started_when_there_is_none(paths, serve, starts):
    starts[0].append(serve)
    connect_or_start(paths).close()
    assert starts[1] == [paths]
    assert not paths.start_lock.exists()


def test_while_another_daemon_holds_the_lock_but_does_not_serve_yet_starting_goes_on(paths, serve, starts):
    """It comes up, or goes down: ours sees the lock taken and starts nothing, three times."""
    starts[0].extend([lambda: None, lambda: None, lambda: None, serve])
    connect_or_start(paths).close()
    assert len(starts[1]) == 4


def test_a_daemon_that_never_serves_is_given_up_with_socket_and_log(paths, starts, monkeypatch):
    monkeypatch.setattr(autostart, "START_TIMEOUT_S", 0.05)
    starts[0].extend([lambda: None] * 1_000_000)
    with pytest.raises(DaemonUnavailableError) as caught:
        connect_or_start(paths)
    assert "see what the daemon wrote" in str(caught.value)
    assert not paths.start_lock.exists()


def test_whoever_started_it_meanwhile_is_used(paths, serve, starts, monkeypatch):
    """Between our first look and our turn, another process has started one."""
    acquire = LockFile.acquire

    def acquire_late(self, timeout_s=0.0):
        serve()
        return acquire(self, timeout_s)

    monkeypatch.setattr(LockFile, "acquire", acquire_late)
    connect_or_start(paths).close()
    assert starts[1] == []


def test_a_start_that_takes_for_ever_elsewhere_is_told(paths, starts, monkeypatch):
    monkeypatch.setattr(autostart, "START_TIMEOUT_S", 0.05)
    other = LockFile(paths.start_lock)
    assert other.acquire()
    try:
        with pytest.raises(DaemonUnavailableError, match="another process has been starting"):
            connect_or_start(paths)
    finally:
        other.release()
    assert starts[1] == []


def test_a_daemon_that_serves_is_used_though_who_starts_one_has_stopped(paths, serve, starts):
    other = LockFile(paths.start_lock)
    assert other.acquire()
    looks = []

    def look(lock, timeout_s=0.0):
        looks.append(timeout_s)
        serve()
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LockFile, "acquire", look)
        connect_or_start(paths).close()
    other.release()
    assert len(looks) == 1
    assert starts[1] == []


def test_a_failed_start_gives_the_lock_back(paths, starts):
    def fail():
        raise DaemonUnavailableError("no luck")

    starts[0].append(fail)
    with pytest.raises(DaemonUnavailableError, match="no luck"):
        connect_or_start(paths)
    assert not paths.start_lock.exists()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_another_program_s_socket_is_an_error_that_names_the_knob(paths, serve, starts, kind):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(os.fspath(paths.socket))
    if kind == socket.SOCK_STREAM:
        server.listen()
    with server, pytest.raises(DaemonUnavailableError, match=r"cannot be connected to.*socket=.*PREFETCHD_SOCKET"):
        connect_or_start(paths)


def test_a_directory_that_others_can_write_to_is_refused(paths, starts):
    paths.socket.parent.chmod(0o777)
    with pytest.raises(CallerError, match="mode 777"):
        connect_or_start(paths)
    assert starts[1] == []


def test_a_directory_that_is_missing_is_made_private(tmp_path, starts):
    paths = runtime_paths(tmp_path / "a" / "d.sock", {"XDG_STATE_HOME": str(tmp_path)})
    starts[0].append(lambda: None)

    def fail():
        raise DaemonUnavailableError("enough")

    starts[0][0] = fail
    with pytest.raises(DaemonUnavailableError):
        connect_or_start(paths)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


# --- the command that starts it ---


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    """Puts a shell script in the interpreter's place; its arguments go to a file."""

    def put(script):
        path = tmp_path / "interpreter"
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return put


def test_what_a_failed_start_said_is_told_with_the_log(paths, interpreter):
    interpreter("echo 'Error: no room' >&2; exit 3")
    with pytest.raises(DaemonUnavailableError) as caught:
        start_daemon(paths)
    assert "(exit 3): Error: no room; see what the daemon wrote" in str(caught.value)
    paths.log.parent.mkdir(parents=True)
    paths.log.touch()
    with pytest.raises(DaemonUnavailableError, match=f"see {paths.log}"):
        start_daemon(paths)


def test_a_daemon_that_is_killed_while_it_starts_is_started_again(paths, interpreter, tmp_path):
    interpreter(f'echo x >> {tmp_path}/starts; test "$(wc -l < {tmp_path}/starts)" = 3')
    start_daemon(paths)
    assert (tmp_path / "starts").read_text() == "x\n" * 3


def test_a_start_that_hangs_is_told_and_ended(paths, interpreter, monkeypatch):
    interpreter("exec sleep 1000")
    monkeypatch.setattr(autostart, "START_TIMEOUT_S", 0.3)
    with pytest.raises(DaemonUnavailableError, match="did not start within 0 s"):
        start_daemon(paths)


def test_the_daemon_is_started_with_nothing_of_the_trainer_s_terminal(paths, interpreter, tmp_path):
    interpreter(f"readlink /proc/self/fd/0 /proc/self/cwd > {tmp_path}/seen; echo to nobody")
    start_daemon(paths)
    assert (tmp_path / "seen").read_text().split() == ["/dev/null", "/"]
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments == ["-m", "prefetchd.cli.detached", str(paths.socket), str(autostart.IDLE_EXIT_S)]
