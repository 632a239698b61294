"""Stacks of other processes: asked for by a signal, only of those that catch it, and shortened to the user's frames."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from prefetchd.daemon.process.loop import Loop
from prefetchd.processes.stack_dumps import (
    GIST_FRAMES,
    STACK_SIGNAL,
    answer_with_stacks,
    ask_for_stacks,
    gist,
    process_state,
    read_stacks,
)
from prefetchd.supervisor.probe_process import look
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.workers.worker_status_writer import map_worker_status
from tests.scenario.forked import forked
from tests.scenario.waiting import until

DUMP = """Thread 0x00007f51 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/u/pool.py", line 7 in background

Current thread 0x00007f50 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/home/u/data.py", line 30 in fetch
  File "/home/u/data.py", line 12 in __getitem__
  File "/opt/venv/lib/prefetchd/workers/samples.py", line 60 in get
  File "/opt/venv/lib/prefetchd/workers/seeding.py", line 50 in run
  File "<string>", line 1 in <module>
"""


def test_the_gist_is_the_users_frames_of_the_thread_that_works():
    assert gist(DUMP) == [
        "/usr/lib/python3.11/socket.py:706 in readinto",
        "/home/u/data.py:30 in fetch",
        "/home/u/data.py:12 in __getitem__",
    ]


def test_imports_are_told_without_the_machinery_of_imports():
    frames = [
        "/home/u/slow.py:3 in <module>",
        *["<frozen importlib._bootstrap>:241 in _call"] * 4,
        "/home/u/m.py:1 in f",
    ]
    lines = [f'  File "{each.split(":")[0]}", line {each.split(":")[1].replace(" in", " in", 1)}' for each in frames]
    text = "Current thread 0x1 (most recent call first):\n" + "\n".join(lines)
    assert gist(text) == [frames[0], frames[-1]]


def test_a_deep_stack_is_cut():
    lines = [f'  File "/u/d.py", line {number} in f' for number in range(50)]
    assert len(gist("Thread 0x1 (most recent call first):\n" + "\n".join(lines))) == GIST_FRAMES


@pytest.mark.parametrize("text", ["", "Fatal Python error", "\n\n"])
def test_no_stack_has_no_gist(text):
    assert gist(text) == []


def test_a_path_may_have_any_name():
    assert gist('Current thread 0x1 (most recent call first):\n  File "/u/a", line 3 in.py", line 4 in g') == [
        '/u/a", line 3 in.py:4 in g'
    ]


class Child:
    """A forked process that waits at `work` until it is killed."""

    def __init__(self, work) -> None:
        self.note = WorkerStatusFile()
        self.pid, self._pipe = forked(lambda: work(self.note.fd))
        self.pidfd = os.pidfd_open(self.pid)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._pipe)
        os.close(self.pidfd)
        self.note.close()


@pytest.fixture
def child(request):
    made = Child(request.param)
    yield made
    made.close()


def waits_in_a_lock(fd):
    answer_with_stacks(fd)
    map_worker_status(fd).begin(1)
    threading.Lock().acquire() and threading.Event().wait()


def keeps_the_interpreter(fd):
    """C code that never gives the GIL away: no Python handler would run."""
    answer_with_stacks(fd)
    map_worker_status(fd).begin(1)
    sum(iter(int, 1))


def catches_nothing(fd):
    map_worker_status(fd).begin(1)
    signal.pause()


def looked(child):
    found = []
    loop = Loop()

    def tell(seen):
        found.append(seen)
        loop.stop()

    look(loop, child.pid, child.pidfd, child.note, tell)
    assert not found, "never at once"
    loop.run()
    loop.close()
    return found[0]


@pytest.mark.parametrize("child", [waits_in_a_lock, keeps_the_interpreter], indirect=True)
def test_a_process_that_is_stuck_shows_where(child):
    until(lambda: child.note.read().task, "it is there")
    for _ in range(2):
        seen = looked(child)
        assert seen.pid == child.pid
        assert seen.state in "SR"
        name = "waits_in_a_lock" if "waits_in_a_lock" in seen.stacks else "keeps_the_interpreter"
        assert seen.stacks.count(f"in {name}\n") == 1, "one stack, not those of before"
        assert any(each.endswith(f" in {name}") for each in gist(seen.stacks))
    assert child.note.read().task == 1, "the note is as it was"
    assert process_state(child.pid) in ("S", "R"), "it lives"


@pytest.mark.parametrize("child", [catches_nothing], indirect=True)
def test_who_does_not_catch_the_signal_is_not_sent_it(child):
    until(lambda: child.note.read().task, "it is there")
    assert not ask_for_stacks(child.pid, child.pidfd, child.note.fd)
    assert looked(child).stacks == ""
    assert process_state(child.pid) in ("R", "S"), "it lives"


@pytest.mark.parametrize("child", [waits_in_a_lock], indirect=True)
def test_a_stopped_process_is_told_as_such_and_not_asked(child):
    until(lambda: child.note.read().task, "it is there")
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: process_state(child.pid) == "T", "it is stopped")
    seen = looked(child)
    assert (seen.state, seen.stacks) == ("T", "")
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: process_state(child.pid) != "T", "it goes on")
    assert read_stacks(child.note.fd) == ""


@pytest.mark.parametrize("child", [waits_in_a_lock], indirect=True)
def test_a_note_that_is_closed_meanwhile_is_no_error(child):
    until(lambda: child.note.read().task, "it is there")
    found = []
    loop = Loop()
    look(loop, child.pid, child.pidfd, child.note, lambda seen: (found.append(seen), loop.stop()))
    child.note.close()
    loop.run()
    loop.close()
    assert found[0].stacks == ""


def test_a_process_that_is_gone_has_no_state():
    pid, pipe = forked(lambda: None)
    os.waitpid(pid, 0)
    os.close(pipe)
    assert process_state(pid) == ""


def test_the_signal_is_nobody_else_s():
    assert signal.SIGRTMIN < STACK_SIGNAL < signal.SIGRTMAX
