"""Daemons as children of the test, and what they leave behind."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time

from tests.scenario.waiting import report_when, until

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
        until(lambda: answers(daemon), "it answers on its socket")
        yield process, log
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answers(daemon) -> bool:
    """Whether somebody listens: between its bind(2) and its listen(2) a socket is there, and refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(str(daemon.socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def leftovers(daemon):
    """All that a daemon may leave."""
    named = [path.name for path in (daemon.socket, daemon.paths.lock, daemon.paths.start_lock) if path.exists()]
    return named + daemon.segments() + [each.pid for each in daemon.processes()]
