"""A fork is stuck when a worker waits for a lock for good, and not when it computes, sleeps or has nothing to do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from prefetchd_client.session.stuck_fork import NO_PROGRESS_S, StuckFork, _waiting_threads

from prefetchd.workers.process_setup import name_process


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_a_task() -> None:
    ours, _ = socket.socketpair()
    ours.recvmsg(1)


def compute() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(1000)


@contextlib.contextmanager
def zygote(*workers: Callable[[], None]) -> Iterator[int]:
    """The pid of a process with such workers, all of which do what they do."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(out, b".")
        for number, work in enumerate(workers):
            if os.fork() == 0:
                name_process(f"prefetchd-w{number}")
                os.write(out, b".")
                work()
                os._exit(0)
        time.sleep(1000)
        os._exit(0)
    try:
        for _ in range(1 + len(workers)):
            assert os.read(into, 1) == b"."
        yield pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(into)
        os.close(out)


def looks(pid: int) -> list[bool]:
    """What a watch says, second by second; only once the workers are where they are going."""
    watch = StuckFork(pid)
    return [watch.look(float(second)) for second in range(1, int(NO_PROGRESS_S) + 3)]


@pytest.fixture
def another_thread() -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


def until_it_waits(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while not _waiting_threads(pid) and time.monotonic() < deadline_s:
        os.sched_yield()


@pytest.mark.usefixtures("another_thread")
def test_lock_that_nobody_opens_is_stuck_after_some_seconds():
    with zygote(wait_for_a_lock, wait_for_a_task) as pid:
        until_it_waits(pid)
        assert looks(pid) == [False] * int(NO_PROGRESS_S) + [True, True]


@pytest.mark.usefixtures("another_thread")
@pytest.mark.parametrize(
    "workers", [[wait_for_a_task], [sleep], [compute], [wait_for_a_lock, compute], [wait_for_a_lock, sleep], []]
)
def test_other_workers_are_not_stuck(workers):
    with zygote(*workers) as pid:
        assert not any(looks(pid))


def test_trainer_without_other_threads_has_lost_none(monkeypatch):
    monkeypatch.setattr("prefetchd_client.session.stuck_fork.other_threads", list)
    with zygote(wait_for_a_lock) as pid:
        until_it_waits(pid)
        assert not any(looks(pid))


def test_process_that_is_gone_is_not_stuck():
    assert not any(looks(2**22 - 3))
