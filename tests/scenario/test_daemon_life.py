"""Daemons start, meet, are asked to stop, are killed, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from prefetchd_client import PrefetchLoader, stream_client
from prefetchd_client.autostart import connect_or_start

from prefetchd.cli import control_client, stop
from prefetchd.cli.snapshot import read_report
from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.messages import Farewell
from tests.scenario.datasets import Made, Numbers
from tests.scenario.forked import forked, told_by
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.watching import is_gone, report_when, stopped, stream_when, until

ENDS_WITHIN_S = 30


def run_in_foreground(daemon, *arguments):
    """`prefetchd run` as a child of this process; what it logs goes into a file beside the socket."""
    log = daemon.socket.with_name(f"foreground-{time.monotonic_ns()}.log")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefetchd", "run", *arguments],
            env=daemon.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    return process, log


@contextlib.contextmanager
def foreground(daemon, *arguments):
    """The same, once it serves; killed at the end if it still runs."""
    process, log = run_in_foreground(daemon, *arguments)
    try:
        report_when(daemon, lambda report: report.snapshot["daemon"]["pid"] == process.pid, "it serves")
        until(daemon.socket.exists, "it has its socket")
        yield process, log
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def leftovers(daemon):
    """All that a daemon may leave."""
    named = [path.name for path in (daemon.socket, daemon.paths.lock, daemon.paths.start_lock) if path.exists()]
    return named + daemon.segments() + [each.pid for each in daemon.processes()]


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
            PrefetchLoader(Numbers(8), batch_size=4)
    if occupy is _directory:
        daemon.socket.rmdir()
    else:
        daemon.socket.unlink()


# --- stopping ---


def test_a_signal_in_the_middle_of_work_ends_it_in_order_and_tells_the_trainer(daemon):
    with foreground(daemon, "--workers", "2") as (process, log):
        loader = PrefetchLoader(Made(_slowly, 40_000), batch_size=4, buffer=9000, stream="busy")
        iterator = iter(loader)
        kept = next(iterator)
        stream_when(daemon, "busy", lambda stream: any(each["busy"] for each in stream["workers"]), "workers are busy")
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_WITHIN_S) == 0
        assert not leftovers(daemon)
        with pytest.raises(DaemonUnavailableError) as caught:
            list(iterator)
        assert "SIGTERM" in str(caught.value)
        assert str(daemon.paths.log) in str(caught.value)
        assert kept.tolist() == [0, 1, 2, 3]
        loader.close()
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert events[0] == "started"
        assert events[-2:] == ["stopping", "stopped"]


def test_ctrl_c_ends_it_in_order_too(daemon):
    with foreground(daemon) as (process, log), Peer(daemon.socket) as peer:
        peer.say(trainer_hello())
        assert peer.hear().program_wanted
        process.send_signal(signal.SIGINT)
        assert peer.hear() == Farewell("SIGINT")
        assert peer.hear() is None
        assert process.wait(ENDS_WITHIN_S) == 0
        assert not leftovers(daemon)
        assert "Traceback" not in log.read_text()


def test_a_second_signal_does_not_break_the_ending(daemon):
    with foreground(daemon) as (process, log):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            process.send_signal(number)
        assert process.wait(ENDS_WITHIN_S) == 0
        assert not leftovers(daemon)
        assert "Traceback" not in log.read_text()


def test_hangups_and_broken_pipes_do_not_end_a_daemon(daemon):
    daemon.start()
    for number in (signal.SIGHUP, signal.SIGPIPE):
        os.kill(daemon.pid, number)
    with Peer(daemon.socket) as peer:
        peer.say(control_hello())
        assert peer.hear().pid == daemon.pid


def test_stop_returns_when_all_is_gone(daemon):
    daemon.start()
    with Peer(daemon.socket) as peer:
        peer.say(trainer_hello())
        assert peer.hear().program_wanted
        done = daemon.command("stop")
        assert not leftovers(daemon)
        assert done.stdout == "stopped\n"
        assert peer.hear() == Farewell("asked to stop")
        assert peer.hear() is None
    again = daemon.command("stop")
    assert again.stdout == f"no daemon on {daemon.socket}\n"


def test_stop_after_a_kill_finds_no_daemon(daemon):
    daemon.start()
    kill(daemon)
    done = daemon.command("stop")
    assert done.stdout == f"no daemon on {daemon.socket}\n"
    daemon.start()


def test_stop_tells_when_the_daemon_does_not_answer(daemon, monkeypatch):
    daemon.start()
    monkeypatch.setattr(control_client, "ANSWER_TIMEOUT_S", 0.2)
    with stopped(daemon):
        done = CliRunner().invoke(stop.command, ["--socket", str(daemon.socket)])
    assert done.exit_code == 1
    assert "does not answer" in done.output
    assert "prefetchd status" in done.output


def test_an_idle_daemon_exits_and_one_with_a_client_does_not(daemon):
    daemon.start("--idle-exit", "0.3")
    pid = daemon.pid
    with Peer(daemon.socket) as peer:
        peer.say(trainer_hello())
        assert peer.hear().program_wanted
        began_s = read_report(daemon.paths).snapshot["taken_unix_s"]
        report_when(daemon, lambda report: report.snapshot["taken_unix_s"] > began_s + 0.8, "it goes on")
    until(lambda: is_gone(pid), "it has exited")
    assert not leftovers(daemon)
    assert json.loads(daemon.command("logs", "--json", "-n", "2").stdout.splitlines()[0])["reason"] == "idle for 0 s"


# --- not answering ---


def test_a_new_trainer_is_told_that_the_daemon_does_not_answer(daemon, monkeypatch):
    daemon.start()
    monkeypatch.setattr(stream_client, "ANSWER_TIMEOUT_S", 0.2)
    with stopped(daemon), pytest.raises(DaemonUnavailableError) as caught:
        PrefetchLoader(Numbers(8), batch_size=4, buffer=6)
    assert "not answered" in str(caught.value)
    assert str(daemon.socket) in str(caught.value)
    assert str(daemon.paths.log) in str(caught.value)


# --- dying ---


def kill(daemon):
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def test_a_killed_daemon_is_replaced_and_what_it_left_is_reclaimed(daemon):
    daemon.start("--workers", "1")
    loader = PrefetchLoader(Numbers(4000), batch_size=4, buffer=6)
    iterator = iter(loader)
    kept, _ = next(iterator)
    left = daemon.segments()
    assert len(left) == 3, "status, program, ring"
    kill(daemon)
    psutil.wait_procs(daemon.processes(), timeout=ENDS_WITHIN_S)
    assert not daemon.processes(), "its children died with it"
    assert daemon.segments() == left
    seen = 4
    try:
        for _, index in iterator:
            assert index.tolist() == list(range(seen, seen + 4))
            seen += 4
    except DaemonUnavailableError as error:
        assert str(daemon.paths.log) in str(error)  # noqa: PT017 - it need not raise
    assert kept[:, 0].tolist() == [0, 1, 2, 3]
    loader.close()
    daemon.start()
    assert read_report(daemon.paths).snapshot["daemon"]["generation"] == 2
    assert not set(left) - {daemon.paths.status_segment[1:]} & set(daemon.segments())
    with Peer(daemon.socket) as peer:
        peer.say(trainer_hello())
        assert peer.hear().program_wanted


def test_a_program_that_its_client_still_hands_over_is_not_reclaimed(daemon):
    """A client that waits for an answer holds a lock on it; the daemon that comes leaves it alone."""
    from prefetchd.wire.file_locks import try_lock
    from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET

    ours, dead = (Path("/dev/shm" + daemon.paths.segment_name("program", token)) for token in ("ours", "dead"))
    with ours.open("wb+") as file, dead.open("wb+"):
        assert try_lock(file.fileno(), DAEMON_LOCK_OFFSET, shared=True)
        daemon.start()
        assert ours.exists()
        assert not dead.exists()
    ours.unlink()


def test_a_daemon_whose_files_run_out_ends_its_sessions_and_nothing_is_left(daemon):
    """Out of descriptors: connections wait or are refused, and it serves again when there are some."""
    daemon.start()
    pid = daemon.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 4, before[1]))
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
    try:
        for sock in crowd:
            sock.connect(str(daemon.socket))
        for sock in crowd:
            sock.close()
        with Peer(daemon.socket) as peer:
            peer.say(control_hello())
            assert peer.hear().pid == pid
    finally:
        for sock in crowd:
            sock.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_files_of_the_socket_s_directory_are_left_alone(daemon):
    with tempfile.NamedTemporaryFile(dir=daemon.socket.parent) as other:
        daemon.start()
        daemon.command("stop")
        assert Path(other.name).exists()


def _slowly(index):
    time.sleep(0.01)
    return index
