"""Coming back to a daemon that has died, or been stopped, without ever blocking: the trainer goes on meanwhile."""

from __future__ import annotations

import socket
import subprocess
import time

from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd_client.autostart import MOST_FAILED_STARTS, connect, launch, outcome

SUPERVISOR_GRACE_S = 10.0
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.25


class Reconnection:
    """One attempt to reach a daemon on `paths`, made of short steps. A daemon that is `supervised` is first waited for:
    whoever ran it may start it again; else one is started here."""

    def __init__(self, paths: RuntimePaths, *, supervised: bool) -> None:
        self.error: DaemonUnavailableError | None = None
        self._paths = paths
        self._may_start_at_s = time.monotonic() + (SUPERVISOR_GRACE_S if supervised else 0.0)
        self._pause_s = FIRST_PAUSE_S
        self._next_step_s = 0.0
        self._start_lock = LockFile(paths.start_lock)
        self._starting: subprocess.Popen[bytes] | None = None
        self._failed_starts = 0

    @property
    def pause_s(self) -> float:
        """Until the next step can do anything."""
        return max(0.0, self._next_step_s - time.monotonic())

    def step(self) -> socket.socket | None:
        """A connection, or None: not yet, or never if `error` says so. Does not block."""
        if self.error is not None or self.pause_s:
            return None
        try:
            sock = connect(self._paths, timeout_s=0.0)
            if sock is None:
                self._see_to_a_daemon()
        except DaemonUnavailableError as error:
            self.error = error
            return None
        self._next_step_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if sock is not None:
            self.close()
        return sock

    def close(self) -> None:
        """Lets go of what it has under way. Idempotent. Waits for a daemon that it has begun to start: that detaches
        itself within a second."""
        if self._starting is not None:
            self._starting.communicate()
            self._starting = None
        self._start_lock.release()

    def _see_to_a_daemon(self) -> None:
        if self._starting is not None:
            if self._starting.poll() is None:
                return
            failure = outcome(self._starting, self._paths)
            self._starting = None
            self._start_lock.release()
            self._failed_starts += failure is not None
            if self._failed_starts >= MOST_FAILED_STARTS and failure is not None:
                raise failure
        elif time.monotonic() >= self._may_start_at_s and self._start_lock.acquire():
            self._starting = launch(self._paths)
            kill_point("client.daemon.launched")
            self._pause_s = FIRST_PAUSE_S
