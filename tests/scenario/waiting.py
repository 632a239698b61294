"""Waiting for what another process will do, and looking at a process from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psutil

from prefetchd.status.snapshot import Report, read_report

DEADLINE_S = 30.0
POLL_S = 0.01

Found = TypeVar("Found")


def until(look: Callable[[], Found], what: str, within_s: float = DEADLINE_S) -> Found:
    """The first true value of look(). Fails, saying what was waited for, after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"not within {within_s:.0f} s: {what}; the last look gave {found!r}"
        time.sleep(POLL_S)


def report_when(daemon, holds: Callable[[Report], object], what: str) -> Report:
    """The first report of the daemon's status segment for which holds(report)."""

    def look() -> Report | None:
        report = read_report(daemon.paths)
        return report if report.snapshot is not None and holds(report) else None

    return until(look, what)


def stream_when(daemon, name: str, holds: Callable[[dict], object] = bool, what: str = "it is there") -> dict:
    """The first snapshot of the stream `name` for which holds(stream)."""

    def look() -> dict | None:
        report = read_report(daemon.paths)
        streams = report.snapshot["streams"] if report.snapshot is not None else []
        return next((each for each in streams if each["name"] == name and holds(each)), None)

    return until(look, f"stream {name}: {what}")


def ring_when(daemon, name: str, holds: Callable[[dict], object], what: str = "its ring is told") -> dict:
    """The first snapshot of the stream `name` that has a ring for which holds(ring). A batch may come before its ring
    is told."""
    return stream_when(daemon, name, lambda stream: stream["ring"] and holds(stream["ring"]), what)


def worker_pids(daemon, name: str) -> list[int]:
    """The pids of the stream's workers, once each has one: of one that is asked for it is 0, and a signal to 0 goes to
    the group of all tests."""
    found = stream_when(
        daemon, name, lambda it: it["workers"] and all(each["pid"] for each in it["workers"]), "workers"
    )
    return [each["pid"] for each in found["workers"]]


def open_fds(pid: int) -> int:
    """Descriptors that the process has, but for those by which it knows of its forks: one each while they live."""
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/{pid}/fd/{name}") != "anon_inode:[pidfd]"
    return count


def open_rings() -> list[int]:
    """This process's descriptors of rings."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "-ring-" in os.readlink(f"/proc/self/fd/{name}"):
                found.append(int(name))
    return found


def is_gone(pid: int) -> bool:
    """True when no such process runs; one that nobody has reaped yet does not run."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def stopped(daemon) -> Iterator[None]:
    """The daemon's process does nothing meanwhile."""
    pid = daemon.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def fills_no_more(stream: dict[str, Any]) -> bool:
    """Of one without a trainer: what was to be filled is, and what has filled it has ended, or does nothing."""
    idle = stream["zygote"] == "executed" and not any(worker["busy"] for worker in stream["workers"])
    return bool(stream["lingering"] and (stream["stage"] == "parked" or idle))
