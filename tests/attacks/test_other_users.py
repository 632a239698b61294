"""Users of the same machine: the daemon serves its own uid and nobody else, and a client asks nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys

import click
import pytest
from prefetchd_client.connection.autostart import connect_or_start

from prefetchd.cli.control_client import ControlClient
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.listener import Listener
from prefetchd.wire.errors import CallerError, DaemonUnavailableError
from prefetchd.wire.runtime_paths import make_private, runtime_paths
from tests.attacks.another_user import NOBODY, as_nobody, as_root, become_nobody
from tests.conftest import running_daemon
from tests.scenario.forked import forked, told_by
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.waiting import open_fds, report_when, until


@pytest.fixture
def reachable(open_directory):
    """A daemon whose socket everybody can connect to: neither the directory nor the file keeps anybody out."""
    with running_daemon(open_directory) as daemon:
        daemon.start()
        open_directory.chmod(0o755)
        daemon.socket.chmod(0o666)
        yield daemon


@as_root
def test_another_user_is_refused_with_both_uids(reachable):
    before = open_fds(reachable.pid)

    def hear():
        with Peer(reachable.socket) as peer:
            message = peer.hear()
            return type(message).__name__, message.code, message.message, peer.hear()

    for _ in range(3):
        assert as_nobody(hear) == str(
            ("Refused", "daemon_refused", f"this daemon serves uid 0; you are uid {NOBODY}", None)
        )
    with Peer(reachable.socket) as peer:
        peer.say(control_hello())
        assert peer.hear().pid == reachable.pid
    until(lambda: open_fds(reachable.pid) == before, "the refused connections are closed")
    warnings = [json.loads(line) for line in reachable.command("logs", "--json").stdout.splitlines()]
    refused = [each for each in warnings if each["level"] == "warning"]
    assert [each["uid"] for each in refused] == [NOBODY] * 3
    assert "another uid" in refused[0]["event"]


@as_root
def test_another_user_s_bytes_are_never_read(reachable):
    """What it sends before it hears the refusal makes no stream and keeps nothing."""

    def speak():
        with Peer(reachable.socket) as peer:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.say(trainer_hello("theirs"))
            return type(peer.hear()).__name__

    assert as_nobody(speak) == "Refused"
    later = report_when(reachable, lambda report: report.state == "running", "it goes on").snapshot["taken_unix_s"]
    report = report_when(reachable, lambda found: found.snapshot["taken_unix_s"] > later, "a later look")
    assert report.snapshot["streams"] == []


@as_root
def test_another_user_can_open_none_of_its_segments(reachable):
    names = reachable.segments()
    assert names

    def attempt():
        refused = 0
        for name in names:
            try:
                os.open(f"/dev/shm/{name}", os.O_RDONLY)
            except PermissionError:
                refused += 1
        return refused

    assert as_nobody(attempt) == str(len(names))


@as_root
def test_a_client_does_not_talk_to_another_user_s_daemon(open_directory):
    path = open_directory / "d.sock"
    open_directory.chmod(0o777)
    ready, go_on = os.pipe()
    done, stop = os.pipe()

    def serve():
        os.close(stop)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(os.fspath(path))
        server.listen()
        os.write(go_on, b"x")
        os.read(done, 1)
        server.settimeout(20)
        return server.accept()[0].recv(100)

    def serve_as_nobody():
        become_nobody()
        return serve()

    child = forked(serve_as_nobody)
    os.close(go_on)
    os.read(ready, 1)
    try:
        with pytest.raises(DaemonUnavailableError, match=f"served by uid {NOBODY}, not by you"):
            connect_or_start(runtime_paths(path))
        with pytest.raises(click.ClickException, match=f"served by uid {NOBODY}, not by you"):
            ControlClient(runtime_paths(path))
    finally:
        os.close(ready)
        os.close(stop)
        os.close(done)
    assert told_by(child) == "b''", "it was told something"


@as_root
@pytest.mark.parametrize("detach", [["--detach"], []], ids=["detached", "foreground"])
def test_a_socket_that_another_user_serves_is_an_error_with_its_owner(shared_directory, detach):
    """It used to be "a daemon serves already", and exit code 0 with --detach."""
    path = shared_directory / "s"
    ready, go_on = os.pipe()
    done, stop = os.pipe()

    def serve():
        become_nobody()
        os.close(stop)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(os.fspath(path))
            server.listen()
            os.write(go_on, b"x")
            os.read(done, 1)

    child = forked(serve)
    os.close(go_on)
    os.read(ready, 1)
    try:
        command = [sys.executable, "-m", "prefetchd", "run", *detach, "--socket", os.fspath(path)]
        started = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        for fd in (ready, stop, done):
            os.close(fd)
    told_by(child)
    assert started.returncode == 1
    assert f"{path} is served by uid {NOBODY}" in started.stderr
    assert started.stdout == ""


@as_root
def test_a_directory_of_another_user_is_refused(open_directory):
    theirs = open_directory / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(CallerError, match=f"belongs to uid {NOBODY}"):
        make_private(theirs)


def test_only_the_user_can_reach_the_socket_and_open_its_segments(daemon):
    daemon.start()
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    for name in daemon.segments():
        assert stat.S_IMODE(os.stat(f"/dev/shm/{name}").st_mode) == 0o600
    assert stat.S_IMODE(daemon.paths.log.parent.stat().st_mode) == 0o700


def test_a_new_directory_for_the_socket_is_private(tmp_path, daemon):
    below = tmp_path / "a"
    daemon.command("run", "--detach", "--socket", str(below / "d.sock"))
    try:
        assert stat.S_IMODE(below.stat().st_mode) == 0o700
    finally:
        daemon.command("stop", "--socket", str(below / "d.sock"))


def test_the_listener_admits_its_own_uid_alone(tmp_path):
    loop = Loop()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(os.fspath(tmp_path / "s"))
    listener = Listener(server, loop, None, lambda *_: None)
    try:
        assert listener.admits(os.geteuid())
        for uid in (0, 1, NOBODY, os.geteuid() + 1, 2**32 - 1):
            assert listener.admits(uid) == (uid == os.geteuid())
    finally:
        listener.close()
        loop.close()
