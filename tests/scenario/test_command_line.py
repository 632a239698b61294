"""The command as people and scripts use it: what it prints, what it exits with, and what is in the log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from prefetchd_client import PrefetchLoader

from prefetchd import __version__
from prefetchd.cli import status as status_verb
from prefetchd.cli.main import VERBS
from prefetchd.status import snapshot
from prefetchd.status.snapshot import read_report
from prefetchd.supervisor.cpu_limits import usable_cpus
from prefetchd.wire.runtime_paths import runtime_paths
from tests.scenario import bad_datasets as bad
from tests.scenario.datasets import Made, Numbers
from tests.scenario.raw_peer import Peer, control_hello
from tests.scenario.waiting import is_gone, stopped, stream_when, until

SECRET = "hunter2-is-not-for-logs"


def status(daemon, *arguments):
    """(exit code, what it printed); the JSON decoded when that was asked for."""
    done = daemon.command("status", *arguments, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout) if "--json" in arguments else done.stdout


# --- status ---


def test_status_without_a_daemon(daemon):
    told = f"no daemon on {daemon.socket}; the first loader starts one, or `prefetchd run` does\n"
    assert status(daemon) == (4, told)
    assert status(daemon, "--json") == (
        4,
        {"state": "absent", "health": "absent", "heartbeat_age_s": None, "problems": []},
    )


def test_status_of_a_daemon_with_nothing_to_do(daemon):
    daemon.start("--workers", "3")
    code, text = status(daemon)
    assert code == 0
    assert re.fullmatch(
        rf"prefetchd {re.escape(__version__)}  healthy  pid {daemon.pid}  up \d+\.\d s  workers 0 busy of 3\n"
        r"no streams\n",
        text,
    )
    code, found = status(daemon, "--json")
    assert code == 0
    assert found["state"] == "running"
    assert found["daemon"]["pid"] == daemon.pid
    assert found["daemon"]["socket"] == str(daemon.socket)
    assert found["daemon"]["log"] == str(daemon.paths.log)
    assert found["workers"] == {"limit": 3, "asked": 3, "cpus": usable_cpus(), "running": 0, "busy": 0}
    assert found["streams"] == []


def test_status_of_a_stopped_process_still_answers_and_says_for_how_long(daemon, monkeypatch):
    monkeypatch.setattr(snapshot, "HANGING_AFTER_S", 0.6)
    daemon.start()

    def here(*arguments):
        """The command in this process, which is less patient than a person's."""
        done = CliRunner().invoke(status_verb.command, ["--socket", str(daemon.socket), *arguments])
        return done.exit_code, done.output

    with stopped(daemon):
        until(lambda: read_report(daemon.paths).state == "hanging", "status calls it hanging")
        code, text = here()
        assert code == 3
        assert "hanging" in text
        assert re.search(r"its last sign of life is \d+\.\d s old", text)
        code, text = here("--json")
        found = json.loads(text)
        assert (code, found["state"], found["daemon"]["pid"]) == (3, "hanging", daemon.pid)
        assert found["heartbeat_age_s"] >= 0.6
    until(lambda: read_report(daemon.paths).state == "running", "status calls it running again")
    assert here()[0] == 0


def test_status_of_a_daemon_that_was_just_killed(daemon):
    daemon.start()
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")
    code, found = status(daemon, "--json")
    assert (code, found["state"], found["daemon"]["pid"]) == (3, "dead", pid)
    assert "dead" in status(daemon)[1]
    daemon.start()
    assert status(daemon)[0] == 0


def test_status_of_streams_in_every_state(shared_daemon):
    with (
        PrefetchLoader(Numbers(40), batch_size=4, buffer=6, stream="works") as works,
        PrefetchLoader(Numbers(40), 4, num_workers=1, stream="fails", worker_init_fn=bad.init_that_raises) as _,
    ):
        next(iter(works))
        with PrefetchLoader(Numbers(40), batch_size=4, buffer=6, stream="left") as left:
            next(iter(left))
        for name, holds in {
            "works": lambda stream: stream["ring"] and stream["consumers"][0].get("yielded") == 1,
            "fails": lambda stream: stream["failure"],
            "left": lambda stream: stream["lingering"] and stream["ring"],
        }.items():
            stream_when(shared_daemon, name, holds)
        code, text = status(shared_daemon)
        assert code == 3
        assert "! stream fails has failed" in text
        sections = {each.split("  ")[0]: re.sub(r"\n +", " ", each) for each in text.split("\n\n")[1:]}
        assert set(sections) == {"works", "fails", "left"}
        assert re.search(r"ring \[[#=+.]{20}\] \d ready, \d leased, \d filling, \d free of 6", sections["works"])
        assert f"consumer pid {os.getpid()}  epoch 0 step 1  yielded 1" in sections["works"]
        assert "failed: " in sections["fails"]
        assert "worker_init_fn" in sections["fails"]
        assert re.search(r"\[(lingering|parked)[,\]]", sections["left"])


def test_the_counts_of_a_ring_add_up(shared_daemon):
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="counted") as loader:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(3)]
        stream = stream_when(shared_daemon, "counted", lambda found: found["ring"] and found["ring"]["ready"] == 5)
        ring = stream["ring"]
        assert ring["leased"] == len(kept)
        assert ring["free"] + ring["filling"] + ring["ready"] + ring["leased"] == ring["slots"] == 8
        assert stream["produced_batches"] == 8
        assert stream["consumers"][0]["held"] == 3


# --- logs ---


def test_every_line_of_the_log_is_json_and_none_has_a_value_of_the_environment(daemon, monkeypatch):
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.setenv("OMP_API_TOKEN", SECRET)
    daemon.environment |= {"API_TOKEN": SECRET}
    daemon.start("--log-level", "debug")
    with Peer(daemon.socket) as peer:
        peer.say(b"garbage")
        peer.refusal()
    with PrefetchLoader(bad.Raising(bad.exit_now), batch_size=4, buffer=6) as loader:
        assert len(list(_survivors(loader))) == 5
    with PrefetchLoader(Made(_speak, 8), 4, num_workers=1, worker_init_fn=bad.init_that_raises) as loader:
        list(_survivors(loader))
    until(lambda: "stream failed" in daemon.paths.log.read_text(), "the failure is in the log")
    daemon.command("stop")
    lines = daemon.paths.log.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [line for line in found if not {"time", "level", "event"} <= set(line)] == []
    events = [line["event"] for line in found]
    assert events[0] == "started"
    assert {"worker died", "stream failed", "stopping", "stopped"} <= set(events)
    assert SECRET not in "\n".join(lines)


def test_logs_are_readable_on_the_screen_and_raw_for_scripts(daemon):
    daemon.start()
    shown = daemon.command("logs").stdout.splitlines()
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z  info     started  pid={daemon.pid}  "
        rf"version={re.escape(__version__)}  socket={re.escape(str(daemon.socket))}",
        shown[-1],
    )
    assert json.loads(daemon.command("logs", "--json").stdout.splitlines()[-1])["event"] == "started"
    daemon.command("stop")
    stopping, stopped = daemon.command("logs", "-n", "2").stdout.splitlines()
    assert stopping.endswith("Z  info     stopping  reason=asked to stop")
    assert "Z  info     stopped  pid=" in stopped
    assert daemon.command("logs", "-n", "0").stdout == ""


def test_logs_without_a_log_say_where_it_would_be(daemon):
    done = daemon.command("logs", check=False)
    assert done.returncode == 1
    assert f"no log at {daemon.paths.log}" in done.stderr


def test_logs_go_on_as_the_log_grows(daemon):
    daemon.start()
    following = subprocess.Popen(
        [sys.executable, "-m", "prefetchd", "logs", "--follow", "--json"],
        env=daemon.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(30, following.kill)
    watchdog.start()
    try:
        assert json.loads(following.stdout.readline())["event"] == "started"
        daemon.command("stop")
        assert json.loads(following.stdout.readline())["event"] == "stopping"
        assert json.loads(following.stdout.readline())["event"] == "stopped"
        daemon.paths.log.rename(daemon.paths.log.with_name("rotated.log"))
        daemon.start()
        assert json.loads(following.stdout.readline())["event"] == "started"
    finally:
        watchdog.cancel()
        following.kill()
        following.wait()
        following.stdout.close()


def written_to(daemon, stdout, *verb) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefetchd", *verb]
    return subprocess.run(
        command, env=daemon.environment, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=30
    )


def test_a_reader_that_closes_the_pipe_is_no_error(daemon):
    daemon.start()
    for verb in (["logs"], ["status"], ["status", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = written_to(daemon, writing, *verb)
        os.close(writing)
        assert done.stderr == "", verb


def test_a_full_disk_is_told_in_a_line(daemon):
    daemon.start()
    for verb in (["status"], ["status", "--json"], ["docs"]):
        with open("/dev/full", "w") as full:
            done = written_to(daemon, full, *verb)
        told = "prefetchd: what it has to say cannot be written: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, told)


# --- usage ---


def test_help_tells_of_every_verb_and_needs_no_daemon(daemon):
    said = daemon.command("--help").stdout
    for verb, text in VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(text[:30])}", said, re.MULTILINE)
    assert daemon.command("--version").stdout.strip().endswith(__version__)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself(daemon, verb):
    said = daemon.command(verb, "--help").stdout
    assert f"Usage: prefetchd {verb}" in said
    assert "--help" in said


def test_help_of_run_names_its_limits_with_their_defaults(daemon):
    said = " ".join(daemon.command("run", "--help").stdout.split())
    for option in ("--workers", "--memory SIZE", "--nice", "--linger", "--linger-clean", "--idle-exit", "--detach"):
        assert option in said
    assert "Default: 600." in said
    assert "Default: 60." in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["statsu"], "No such command 'statsu'. Did you mean 'status'?"),
        (["loglevel"], "Did you mean 'log-level'?"),
        (["run", "--workers", "0"], "--workers"),
        (["run", "--workers", "many"], "--workers"),
        (["run", "--memory", "a lot"], "'4GiB'"),
        (["run", "--nice", "-5"], "--nice"),
        (["run", "--linger", "-1"], "--linger"),
        (["run", "--linger-clean", "soon"], "--linger-clean"),
        (["run", "--idle-exit", "-3"], "--idle-exit"),
        (["run", "--log-level", "chatty"], "--log-level"),
        (["run", "--colour"], "--colour"),
        (["run", "--socket", "/tmp/" + "x" * 200 + ".sock"], "allowed: 100"),
        (["status", "--socket", "/tmp/" + "x" * 200 + ".sock"], "allowed: 100"),
        (["status", "--yaml"], "--yaml"),
        (["status", "extra"], "extra"),
        (["logs", "-n", "-1"], "--lines"),
        (["stop", "--now-please"], "--now-please"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_wrong_usage_exits_with_2_and_says_what_was_wrong(daemon, arguments, told):
    done = daemon.command(*arguments, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_environment_names_the_socket_and_the_option_overrides_it(daemon, tmp_path):
    other = tmp_path / "other.sock"
    daemon.start()
    assert status(daemon)[0] == 0
    assert daemon.command("status", "--socket", str(other), check=False).returncode == 4
    assert runtime_paths(other).log != daemon.paths.log
    with Peer(daemon.socket) as peer:
        peer.say(control_hello())
        assert peer.hear().pid == daemon.pid


def _survivors(loader):
    iterator = iter(loader)
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            if "stream" in type(error).__name__.lower():
                return


def _speak(index):
    print("sample", index)
    return index
