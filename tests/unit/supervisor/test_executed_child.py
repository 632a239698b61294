"""An interpreter that is started anew: what it has of the daemon, and that nothing is left where it cannot be had."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import psutil
import pytest

from prefetchd.processes.process_exit import CLEAN, KILLED, UNEXPLAINED, ProcessExit
from prefetchd.supervisor import executed_child
from prefetchd.supervisor.executed_child import ExecutedChild
from tests.scenario.waiting import open_fds, until

TELLS = """
import json, os, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
found = {
    "variables": dict(os.environ), "directory": os.getcwd(), "session": os.getsid(0), "nice": os.nice(0),
    "input": os.read(0, 10).decode(), "passed": [os.read(int(fd), 10).decode() for fd in sys.argv[2:]],
}
sock.send(json.dumps(found).encode())
print("to stdout", flush=True)
print("to stderr", file=sys.stderr, flush=True)
sys.exit(4)
"""
WAITS = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


class Executed:
    """An executed child with its ends, which are closed with it."""

    def __init__(self, code: str, variables: dict[bytes, bytes], *passed: int, nice: int = 0) -> None:
        before = [os.fsencode(sys.executable), b"-c", code.encode()]
        more = [str(fd).encode() for fd in passed]
        self.child = ExecutedChild(
            lambda control: [*before, str(control).encode(), *more], variables, list(passed), nice=nice
        )

    def output(self) -> str:
        with os.fdopen(os.dup(self.child.output)) as file:
            return file.read()

    def close(self) -> None:
        self.child.sock.close()
        self.child.reap()
        os.close(self.child.output)
        os.close(self.child.pidfd)


@pytest.fixture
def execute():
    made = []

    def start(*arguments, **options) -> Executed:
        made.append(Executed(*arguments, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_it_has_what_it_is_given_and_no_more(execute, monkeypatch):
    monkeypatch.setenv("OF_THE_DAEMON", "secret")
    first, second = os.memfd_create("passed"), os.memfd_create("not-passed")
    os.pwrite(first, b"passed", 0)
    os.set_inheritable(second, False)
    it = execute(TELLS, {b"KNOB": b"\xc3\xa4", **HASHES}, first)
    found = json.loads(it.child.sock.recv(100_000))
    os.close(first)
    os.close(second)
    assert found["variables"]["KNOB"] == "\u00e4"
    assert "OF_THE_DAEMON" not in found["variables"]
    assert found["passed"] == ["passed"]
    assert found["input"] == "", "nobody types"
    assert found["directory"] == "/"
    assert found["session"] == it.child.pid


HASHES = {b"PYTHONHASHSEED": b"0", b"PYTHONUTF8": b"1"}


def test_what_it_prints_is_in_one_pipe_which_ends_with_it(execute):
    it = execute(TELLS, HASHES)
    assert it.output().splitlines() == ["to stdout", "to stderr"]


def test_it_is_as_nice_as_it_is_asked_to_be(execute):
    it = execute(WAITS, HASHES, nice=3)
    assert os.getpriority(os.PRIO_PROCESS, it.child.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3


def test_its_end_is_reaped_with_how_it_came(execute):
    told, quiet, killed = execute(TELLS, HASHES), execute(WAITS, HASHES), execute(WAITS, HASHES)
    assert told.child.reap() == ProcessExit.exited(4)
    quiet.child.sock.shutdown(socket.SHUT_WR)
    assert quiet.child.reap() == CLEAN
    signal.pidfd_send_signal(killed.child.pidfd, signal.SIGKILL)
    assert killed.child.reap() == KILLED
    assert killed.child.reap() == KILLED, "who asks again is told the same"


def test_one_that_does_not_end_is_not_waited_for(execute, monkeypatch):
    it = execute(WAITS, HASHES)
    monkeypatch.setattr(executed_child, "REAP_DEADLINE_S", 0.0)
    assert it.child.reap() == UNEXPLAINED
    monkeypatch.undo()


def test_an_interpreter_that_is_not_there_leaves_no_descriptor():
    before = open_fds(os.getpid())
    with pytest.raises(FileNotFoundError):
        ExecutedChild(lambda _: [b"/no/such/python"], {}, nice=0)
    assert open_fds(os.getpid()) == before


@pytest.mark.executed
def test_one_that_cannot_be_watched_is_killed_and_leaves_no_descriptor(execute, monkeypatch):
    execute(WAITS, HASHES)
    before, processes = open_fds(os.getpid()), children()

    def no_more(_pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", no_more)
    with pytest.raises(OSError, match="Too many"):
        Executed(WAITS, HASHES)
    assert open_fds(os.getpid()) == before
    until(lambda: children() <= processes, "no child is left")


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}
