"""Ends a daemon in order and waits until it is gone, for the verbs that do: stop and restart."""

from __future__ import annotations

import os
import time

import click

from prefetchd.cli.control_client import ControlClient
from prefetchd.cli.patience import Patience
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.messages import Farewell, Stop
from prefetchd.wire.runtime_paths import RuntimePaths

STOP_TIMEOUT_S = 30.0
LOOK_AGAIN_S = 0.2


def end_daemon(paths: RuntimePaths, *, now: bool = False, keep: bool = False) -> None:
    """Ends the daemon on `paths`; with `keep` it leaves its rings. Returns when it is gone. Raises NoDaemonError, and
    ClickException when it does not answer or does not end within STOP_TIMEOUT_S."""
    mark = _mark(paths)
    with ControlClient(paths) as client:
        client.ask(Stop(now, keep), Farewell)
        client.wait_for_end()
    # The lock is given up last, after the segments.
    lock = LockFile(paths.lock)
    began_s = time.monotonic()
    with Patience("waiting until the daemon has ended") as patience:
        # One with another mark is another daemon's by now, that a trainer has started.
        while _mark(paths) == mark and not lock.acquire(LOOK_AGAIN_S):
            if time.monotonic() - began_s > STOP_TIMEOUT_S:
                raise click.ClickException(f"the daemon has not ended after {STOP_TIMEOUT_S:.0f} s; see {paths.log}")
            patience.go_on()
    if keep and lock.fd >= 0 and lock.read_number():
        # The number in it counts the daemons whose rings are still there. Without one the file is ours, made just now.
        lock.leave()
    else:
        lock.release()


def _mark(paths: RuntimePaths) -> tuple[int, int] | None:
    """Returns what tells the lock's file, as one daemon has written its number into it, from that of another."""
    try:
        found = os.lstat(paths.lock)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
