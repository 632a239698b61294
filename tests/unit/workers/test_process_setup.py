"""What every child does first, seen in real children."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from prefetchd.workers.process_setup import (
    die_with_parent,
    leave_signals_to_daemon,
    name_process,
    send_output_to,
)

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30


def in_child(act: Callable[[int], None]) -> bytes:
    """Forks a child that runs act(fd); what it wrote to the descriptor."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act(writing)
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_a_process_is_named_as_ps_shows_it():
    def act(fd: int) -> None:
        name_process("prefetchd-with-a-long-name")
        os.write(fd, Path("/proc/self/comm").read_bytes())

    assert in_child(act) == b"prefetchd-with-\n"


def test_signals_of_the_terminal_are_the_daemons():
    def act(fd: int) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        leave_signals_to_daemon()
        found = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        os.write(fd, repr(found == [signal.SIG_IGN, signal.SIG_DFL, signal.SIG_DFL]).encode())

    assert in_child(act) == b"True"


def test_output_goes_to_the_pipe_line_by_line_and_input_is_empty():
    def act(fd: int) -> None:
        # As a zygote's child: its stdout is not a test runner's.
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        send_output_to(fd)
        print("printed")
        sys.stderr.write("complained\n")
        sys.stderr.flush()
        os.write(1, b"by descriptor\n")
        os.write(2, b"input: %d bytes\n" % len(os.read(0, 10)))

    assert in_child(act) == b"printed\ncomplained\nby descriptor\ninput: 0 bytes\n"


def test_threads_are_named_that_no_python_object_knows_of_but_for_those_that_are_forked_well():
    code = """
import ctypes, os, threading
from prefetchd.workers.process_setup import unforkable_threads
found = [unforkable_threads()]
threading.Thread(target=threading.Event().wait, daemon=True, name="my-thread").start()
found.append(unforkable_threads())
libc = ctypes.CDLL(None)
for name in (b"native", b"jemalloc_bg_thd"):
    handle = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(handle), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)
    libc.pthread_setname_np(handle, name)
    found.append(unforkable_threads())
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    alone, python, *native = eval(done.stdout)
    assert (alone, python) == ([], ["my-thread"])
    assert native == [["my-thread", "native"]] * 2


PARENT = """
import os, sys, time
from prefetchd.workers.process_setup import die_with_parent
parent = os.getpid()
pid = os.fork()
if pid == 0:
    die_with_parent(parent)
    os.write(1, b"armed\\n")
    time.sleep(600)
os.write(1, b"%d\\n" % pid)
sys.stdin.read()
"""


def test_a_child_dies_with_its_parent_however_that_dies():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        said = {parent.stdout.readline().strip() for _ in range(2)}
        (pid,) = said - {"armed"}
        child = os.pidfd_open(int(pid))
        parent.kill()
        parent.wait()
        poll = select.poll()
        poll.register(child, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000), "it outlived its parent"
    os.close(child)


def test_a_child_whose_parent_is_gone_already_ends_at_once():
    def act(fd: int) -> None:
        die_with_parent(1 if os.getppid() != 1 else 2)
        os.write(fd, b"still there")

    assert in_child(act) == b""
