"""The daemon is a container's first process, or has become what a shell with other children was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prefetchd.processes.descendants import children
from tests.scenario.foreground import ENDS_WITHIN_S, answers
from tests.scenario.waiting import is_gone, report_when, until

APART = ["--pid", "--fork", "--mount-proc", "--kill-child"]
AS_FIRST = "import os; from prefetchd.daemon.process.init_process import leave_first_process; leave_first_process(); "


def in_pid_namespace() -> list[str]:
    """The command that runs another one as the first process of a PID namespace."""
    for rights in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *rights, *APART]
        if shutil.which("unshare") and not subprocess.run([*command, "true"], capture_output=True).returncode:
            return command
    pytest.skip("no right to make a PID namespace")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), 9)", 137),
        ("os.kill(1, 15); import signal; signal.pause()", 143),
        ("os._exit(os.getpid() == 1 or os.environ['LISTEN_PID'] != str(os.getpid()))", 0),
    ],
    ids=["ends", "is killed", "is sent a signal", "has another number"],
)
def test_a_first_process_ends_as_its_child_does_and_hands_on_signals(what, code):
    variables = {**os.environ, "LISTEN_PID": "1"}
    done = subprocess.run([*in_pid_namespace(), sys.executable, "-c", AS_FIRST + what], env=variables, check=False)
    assert done.returncode == code


def test_a_daemon_that_is_a_containers_first_process_is_not_given_what_others_leave_behind(daemon):
    """Found as a training that was started by `docker exec` and ended by the daemon once that had returned."""
    command = [*in_pid_namespace(), sys.executable, "-m", "prefetchd", "run"]
    process = subprocess.Popen(command, env=daemon.environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(daemon), "it serves")
        (first,) = children(process.pid)
        (serving,) = children(first)
        enter = ["nsenter", "--target", str(first), "--pid", "--mount"]
        if "--user" in command:
            enter.append("--user")
        left = "sleep 1000 > /dev/null 2>&1 & exit 0"
        subprocess.run([*enter, "sh", "-c", left], check=True)
        (orphan,) = until(lambda: children(first) - {serving}, "it is left behind")
        assert parent_of(serving) == parent_of(orphan) == first
        assert not children(serving)
        os.kill(first, signal.SIGTERM)
        assert process.wait(ENDS_WITHIN_S) == 0
        until(lambda: is_gone(orphan), "all in the namespace has ended with it")
    finally:
        process.kill()
        process.wait()


def test_children_that_the_daemon_has_never_started_are_left_alone(daemon, tmp_path):
    """Found as the other job of a shell script that ended in `exec prefetchd run`."""
    told = tmp_path / "pid"
    script = f"sleep 1000 & echo $! > {told}; exec {sys.executable} -m prefetchd run"
    process = subprocess.Popen(["sh", "-c", script], env=daemon.environment, stderr=subprocess.DEVNULL)
    until(lambda: answers(daemon), "it serves")
    other = int(told.read_text())
    try:
        report_when(daemon, lambda report: report.snapshot["daemon"]["pid"] == process.pid, "it serves")
        assert other in children(process.pid)
        # In its end it looks for the last time.
        process.send_signal(signal.SIGTERM)
        assert process.wait(ENDS_WITHIN_S) == 0
        assert not is_gone(other)
    finally:
        os.kill(other, signal.SIGKILL)
        process.kill()
        process.wait()
