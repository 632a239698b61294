"""Daemons are asked to stop, are killed, crash or do not answer; trainers are told, and nothing is left behind."""

from __future__ import annotations

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

import pytest
from click.testing import CliRunner
from prefetchd_client import PrefetchLoader
from prefetchd_client.connection import autostart, reconnection
from prefetchd_client.session import link

from prefetchd.cli import control_client, stop
from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.file_locks import try_lock
from prefetchd.wire.messages import Farewell
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET
from tests.scenario.datasets import Made, Numbers
from tests.scenario.foreground import ENDS_WITHIN_S, answers, foreground, leftovers
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.waiting import is_gone, report_when, ring_when, stopped, stream_when, until

# --- stopping ---


def kill(daemon):
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def test_a_signal_in_the_middle_of_work_ends_it_in_order(daemon):
    with foreground(daemon, "--workers", "2") as (process, log):
        loader = PrefetchLoader(Made(_slowly, 40_000), batch_size=4, buffer=9000, stream="busy")
        iterator = iter(loader)
        kept = next(iterator)
        stream_when(daemon, "busy", lambda stream: any(each["busy"] for each in stream["workers"]), "workers are busy")
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_WITHIN_S) == 0
        assert not leftovers(daemon)
        assert kept.tolist() == [0, 1, 2, 3]
        loader.close()
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert events[0] == "started"
        assert [each for each in events if each != "reclaimed"][-2:] == ["stopping", "stopped"]


def test_a_trainer_gives_a_supervisor_time_and_then_starts_a_daemon_itself(daemon, monkeypatch):
    monkeypatch.setattr(reconnection, "SUPERVISOR_GRACE_S", 0.5)
    with foreground(daemon) as (process, _):
        loader = PrefetchLoader(Numbers(400), batch_size=4, buffer=8)
        iterator = iter(loader)
        next(iterator)
        process.send_signal(signal.SIGTERM)
        process.wait(ENDS_WITHIN_S)
    began_s = time.monotonic()
    assert [index[0] for _, index in iterator] == list(range(4, 400, 4))
    assert time.monotonic() - began_s > 0.5
    assert read_report(daemon.paths).snapshot["daemon"]["generation"] == 1, "it had left nothing"
    loader.close()


def test_a_trainer_whose_daemon_cannot_be_started_again_is_told_why(daemon, monkeypatch):
    daemon.start()
    with PrefetchLoader(Made(_slowly, 400), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        next(iterator)
        monkeypatch.setattr(autostart.sys, "executable", "/bin/false")
        kill(daemon)
        with pytest.raises(DaemonUnavailableError, match="the daemon is gone, and the daemon did not start") as caught:
            list(iterator)
        assert str(daemon.paths.log) in str(caught.value)
        monkeypatch.undo()
        assert next(iterator) is not None, "asked again, it tries again"


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


SIGNALLED_LATE = """
import os, signal, sys

class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
        for number in numbers:
            kill(pid, number)

late = Late()
from prefetchd.cli.main import main
sys.argv = ["prefetchd", "run"]
main()
"""


def test_signals_while_the_interpreter_ends_do_not_break_it(daemon):
    process = subprocess.Popen([sys.executable, "-c", SIGNALLED_LATE], env=daemon.environment)
    until(lambda: answers(daemon), "it serves")
    daemon.command("stop")
    assert process.wait(ENDS_WITHIN_S) == 0


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
    daemon.start("--idle-exit", "3")
    pid = daemon.pid
    with Peer(daemon.socket) as peer:
        peer.say(trainer_hello())
        assert peer.hear().program_wanted
        began_s = read_report(daemon.paths).snapshot["taken_unix_s"]
        report_when(daemon, lambda report: report.snapshot["taken_unix_s"] > began_s + 3.5, "it goes on")
    until(lambda: is_gone(pid), "it has exited")
    assert not leftovers(daemon)
    assert json.loads(daemon.command("logs", "--json", "-n", "2").stdout.splitlines()[0])["reason"] == "idle for 3 s"


# --- not answering ---


def test_a_new_trainer_is_told_that_the_daemon_does_not_answer(daemon, monkeypatch):
    daemon.start()
    monkeypatch.setattr(link, "ANSWER_TIMEOUT_S", 0.2)
    with stopped(daemon), pytest.raises(DaemonUnavailableError) as caught:
        PrefetchLoader(Numbers(8), batch_size=4, buffer=6)
    assert "not answered" in str(caught.value)
    assert str(daemon.socket) in str(caught.value)
    assert str(daemon.paths.log) in str(caught.value)


# --- dying ---


def test_a_killed_daemon_is_replaced_and_what_it_left_is_used(daemon):
    daemon.start("--workers", "1")
    loader = PrefetchLoader(Numbers(4000), batch_size=4, buffer=6)
    iterator = iter(loader)
    kept, _ = next(iterator)
    report_when(daemon, lambda report: [each["program_kept"] for each in report.snapshot["streams"]] == [True], "kept")
    left = until(lambda: len(found := daemon.segments()) == 3 and found, "status, program, ring")
    kill(daemon)
    until(lambda: {each.name() for each in daemon.processes()} <= {"prefetchd-zyg"}, "its children died with it")
    assert daemon.segments() == left
    assert loader.stats()["reconnections"] == 0
    daemon.start()
    assert read_report(daemon.paths).snapshot["daemon"]["generation"] == 2
    assert daemon.segments() == left, "all of it is in use again"
    assert [index[0] for _, index in iterator] == list(range(4, 4000, 4))
    assert kept[:, 0].tolist() == [0, 1, 2, 3]
    assert loader.stats()["reconnections"] == 1
    loader.close()


def test_what_a_killed_daemon_left_and_nobody_can_use_is_reclaimed(daemon):
    daemon.start()
    rings = [Path("/dev/shm" + daemon.paths.segment_name(kind, "broken")) for kind in ("ring", "ring-2", "program")]
    for place, path in enumerate(rings):
        path.write_bytes(b"PFDRING\0" * 600 * place)
    kill(daemon)
    daemon.start()
    assert not any(path.exists() for path in rings)


CRASHES = """
import sys
from prefetchd.cli.main import main
from prefetchd.daemon.engine.engine import Engine

tick = Engine.tick

def forget(self, *now):
    if self.streams:
        raise KeyError("a bug of ours")
    tick(self, *now)

Engine.tick = forget
sys.argv = ["prefetchd", "run"]
main()
"""


def test_a_daemon_that_crashes_says_so_in_its_log_and_leaves_nothing(daemon):
    log = daemon.socket.with_name("crash.log")
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-c", CRASHES], env=daemon.environment, stderr=stderr)
    until(lambda: answers(daemon), "it serves")
    with Peer(daemon.socket) as peer:
        peer.say(trainer_hello())
        assert peer.hear().program_wanted
        assert peer.hear() is None
    assert process.wait(ENDS_WITHIN_S) == 1
    assert not leftovers(daemon)
    crashed = next(json.loads(line) for line in log.read_text().splitlines() if '"crashed"' in line)
    assert crashed["level"] == "error"
    assert "KeyError: 'a bug of ours'" in crashed["traceback"]


CRASHES_LATER = """
import os
import sys
from prefetchd.cli.main import main
from prefetchd.daemon import main as daemon_main
from prefetchd.daemon.engine.engine import Engine

daemon_main.FAILS_AT_ONCE_S = 0.0
tick = Engine.tick

def forget(self, *now):
    if os.path.exists(flag):
        raise KeyError("a bug of ours")
    tick(self, *now)

Engine.tick = forget
flag = sys.argv[1]
sys.argv = ["prefetchd", "run"]
main()
"""


def test_a_daemon_that_crashes_leaves_its_rings_to_the_next_one_as_if_it_was_killed(daemon, tmp_path):
    flag = tmp_path / "crash-now"
    process = subprocess.Popen([sys.executable, "-c", CRASHES_LATER, flag], env=daemon.environment)
    until(lambda: answers(daemon), "it serves")
    with PrefetchLoader(Numbers(64), batch_size=4, stream="kept", buffer=16) as loader:
        iterator = iter(loader)
        found = next(iterator)[1].tolist()
        ring = ring_when(daemon, "kept", lambda ring: ring["ready"] >= 10, "batches wait")["ring"]
        flag.touch()
        assert process.wait(ENDS_WITHIN_S) == 1
        daemon.start()
        for batch in iterator:
            found += batch[1].tolist()
        assert stream_when(daemon, "kept")["ring"]["segment"] == ring["segment"]
    assert found == list(range(64))


def test_a_program_that_its_client_still_hands_over_is_not_reclaimed(daemon):
    """A client that waits for an answer holds a lock on it; the daemon that comes leaves it alone."""
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
    assert before[0] == min(before[1], 65536), "it takes as many as it may have"
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
