"""Daemons start, meet one another, and find their place taken."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.connection.autostart import connect_or_start

from prefetchd.wire.errors import DaemonUnavailableError
from tests.scenario.datasets import Numbers
from tests.scenario.foreground import ENDS_WITHIN_S, leftovers, run_in_foreground
from tests.scenario.forked import forked, told_by
from tests.scenario.raw_peer import Peer, control_hello
from tests.scenario.waiting import report_when, until

pytestmark = pytest.mark.executed

# --- starting ---


def test_of_daemons_started_at_once_exactly_one_wins_and_the_others_say_so(daemon):
    started = [run_in_foreground(daemon) for _ in range(6)]
    processes = {process.pid: (process, log) for process, log in started}
    until(lambda: sum(process.poll() is not None for process, _ in started) == 5, "five of six have ended")
    winner = report_when(daemon, lambda report: report.state == "running", "one serves").snapshot["daemon"]["pid"]
    for pid, (process, log) in processes.items():
        if pid == winner:
            assert process.poll() is None
            continue
        assert process.returncode == 1
        assert log.read_text() == f"Error: a daemon serves {daemon.socket} already; see `prefetchd status`\n"
    daemon.command("stop")
    assert processes[winner][0].wait(ENDS_WITHIN_S) == 0
    for process, _ in started:
        process.stdout.close()


def test_one_that_a_loader_starts_reads_its_variables_as_the_command_does(daemon, monkeypatch):
    config = daemon.socket.with_name("streams.toml")
    declared = '[streams.declared]\ndataset = "tests.scenario.declared_datasets:numbers"\n'
    config.write_text(declared + "[daemon]\nworkers = 1\n")
    metrics = daemon.socket.with_name("metrics")
    monkeypatch.setenv("PREFETCHD_CONFIG", str(config))
    monkeypatch.setenv("PREFETCHD_METRICS", f"unix:{metrics}")
    with PrefetchLoader(Numbers(8), batch_size=4, buffer=6) as loader:
        assert len(list(loader)) == 2
        report = report_when(daemon, lambda report: len(report.snapshot["streams"]) == 2, "both are there")
        assert report.snapshot["workers"]["limit"] == 1
        with socket.socket(socket.AF_UNIX) as scrape:
            scrape.connect(str(metrics))


def test_a_second_detached_daemon_says_that_there_is_one(daemon):
    assert daemon.command("run", "--detach").stdout == ""
    pid = daemon.pid
    again = daemon.command("run", "--detach")
    assert again.stdout == f"a daemon serves {daemon.socket} already\n"
    assert daemon.pid == pid


def test_clients_that_start_a_daemon_at_once_get_one_daemon(daemon):
    def ask_for_its_pid():
        with Peer(connect_or_start(daemon.paths)) as peer:
            peer.say(control_hello())
            return peer.hear().pid

    children = [forked(ask_for_its_pid) for _ in range(8)]
    assert [told_by(child) for child in children] == [str(daemon.pid)] * 8
    assert not daemon.paths.start_lock.exists()


def test_a_detached_daemon_keeps_nothing_of_its_starter(daemon, tmp_path):
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    (tmp_path / "here").mkdir()
    try:
        subprocess.run(
            [sys.executable, "-m", "prefetchd", "run", "--detach"],
            env=daemon.environment,
            pass_fds=[writing],
            cwd=tmp_path / "here",
            check=True,
            timeout=ENDS_WITHIN_S,
        )
        os.close(writing)
        os.set_blocking(reading, False)
        assert os.read(reading, 1) == b"", "the daemon keeps the starter's pipe open"
    finally:
        os.close(reading)
    process = psutil.Process(daemon.pid)
    assert process.cwd() == "/"
    assert os.getsid(process.pid) == process.pid
    for fd in (0, 1, 2):
        assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == os.devnull


def test_a_detached_daemon_that_cannot_log_says_so(daemon, tmp_path):
    in_the_way = tmp_path / "state"
    in_the_way.write_text("not a directory")
    daemon.environment["XDG_STATE_HOME"] = str(in_the_way)
    done = daemon.command("run", "--detach", check=False)
    assert done.returncode == 1
    assert str(in_the_way) in done.stderr
    assert "XDG_STATE_HOME" in done.stderr
    assert not leftovers(daemon)


# --- what is in the way ---


@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["foreground", "detached"])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path, daemon, detach):
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o777)
    done = daemon.command("run", *detach, "--socket", str(public / "d.sock"), check=False)
    assert done.returncode == 1
    assert f"{public} belongs to uid {os.geteuid()} with mode 777" in done.stderr
    assert "--socket" in done.stderr
    assert not list(public.iterdir())


def _plain_file(path: Path):
    path.write_text("the thesis")
    return contextlib.nullcontext()


def _directory(path: Path):
    path.mkdir()
    return contextlib.nullcontext()


def _foreign_socket(path: Path):
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(os.fspath(path))
    server.listen()
    return server


@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["foreground", "detached"])
@pytest.mark.parametrize("occupy", [_plain_file, _directory, _foreign_socket])
def test_what_is_not_a_dead_daemon_s_socket_is_left_alone(daemon, occupy, detach):
    with occupy(daemon.socket):
        before = daemon.socket.stat()
        done = daemon.command("run", *detach, check=False)
        assert done.returncode == 1
        assert str(daemon.socket) in done.stderr
        assert "--socket" in done.stderr
        assert "Traceback" not in done.stderr
        assert daemon.socket.stat().st_ino == before.st_ino
        with pytest.raises(DaemonUnavailableError, match=r"socket.*PREFETCHD_SOCKET"):
            next(iter(PrefetchLoader(Numbers(8), batch_size=4)))
    if occupy is _directory:
        daemon.socket.rmdir()
    else:
        daemon.socket.unlink()


# --- starting as the last one was started ---


def started_by_a_trainer(daemon, killed: int) -> dict:
    """What the next daemon says of itself, which a trainer has started."""

    def is_another(report) -> bool:
        return report.state == "running" and report.snapshot["daemon"]["pid"] != killed

    return report_when(daemon, is_another, "another daemon").snapshot["daemon"]


def test_a_daemon_after_a_crash_is_started_as_the_dead_one_was(daemon):
    daemon.environment["RAY_AUTH_TOKEN"] = "secret"
    daemon.start("--ray", "127.0.0.1:1", "--linger", "77", "--no-autotune")
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=4) as loader:
        batches = iter(loader)
        next(batches)
        killed, options = daemon.pid, report_when(daemon, lambda _: True, "").snapshot["daemon"]["options"]
        os.kill(killed, signal.SIGKILL)
        assert len(list(batches)) == 99
        found = started_by_a_trainer(daemon, killed)
    assert found["options"] == options == {"ray": "127.0.0.1:1", "linger": 77.0, "autotune": False}
    with open(f"/proc/{found['pid']}/environ", "rb") as environ:
        assert b"RAY_AUTH_TOKEN=secret" in environ.read().split(b"\0")
    daemon.command("stop")
    assert not daemon.paths.start_record.exists(), "a daemon that is stopped is not to come back so"
