"""Coming back to a daemon that has died, or been stopped, without ever blocking: the trainer goes on meanwhile."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time

from prefetchd.wire.errors import CallerError, DaemonUnavailableError
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import RuntimePaths, make_private
from prefetchd_client.autostart import MOST_FAILED_STARTS, START_TIMEOUT_S, connect, launch, outcome

SUPERVISOR_GRACE_S = 10.0
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.25


class Reconnection:
    """One attempt to reach a daemon on `paths`, made of short steps. A daemon that is `supervised` is first waited for:
    whoever ran it may start it again; else one is started here, with the configuration that the former one had."""

    def __init__(self, paths: RuntimePaths, *, supervised: bool, config: bytes = b"") -> None:
        self.error: DaemonUnavailableError | None = None
        self._paths = paths
        self._config = config
        self._may_start_at_s = time.monotonic() + (SUPERVISOR_GRACE_S if supervised else 0.0)
        self._pause_s = FIRST_PAUSE_S
        self._next_step_s = 0.0
        self._start_lock = LockFile(paths.start_lock)
        self._starting: subprocess.Popen[bytes] | None = None
        self._launched_s = 0.0
        self._failed_starts = 0

    @property
    def pause_s(self) -> float:
        """Until the next step can do anything."""
        return max(0.0, self._next_step_s - time.monotonic())

    def step(self) -> socket.socket | None:
        """A connection, or None: not yet, or never if `error` says so. Does not block."""
        if self.error is not None or self.pause_s:
            return None
        sock = None
        try:
            # A launch ends a moment after its daemon serves; once connected we would have to wait for that.
            if self._starting is not None:
                self._see_to_the_launch(self._starting)
            else:
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
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(START_TIMEOUT_S)
            self._starting.kill()
            self._starting.communicate()
            self._starting = None
        self._start_lock.release()

    def abandon(self) -> None:
        """In a forked child: what is under way is the parent's."""
        if self._starting is not None and self._starting.stdout is not None:
            self._starting.stdout.close()
        self._start_lock.leave()

    def _see_to_the_launch(self, starting: subprocess.Popen[bytes]) -> None:
        if starting.poll() is None:
            if time.monotonic() < self._launched_s + START_TIMEOUT_S:
                return
            starting.kill()
        failure = outcome(starting, self._paths)
        self._starting = None
        self._start_lock.release()
        self._pause_s = FIRST_PAUSE_S
        if failure is not None:
            self._failed(failure)

    def _see_to_a_daemon(self) -> None:
        if time.monotonic() >= self._may_start_at_s and self._may_start():
            try:
                self._starting = launch(self._paths, self._config)
            except DaemonUnavailableError as failure:
                self._start_lock.release()
                self._failed(failure)
                return
            self._launched_s = time.monotonic()
            kill_point("client.daemon.launched")
            self._pause_s = FIRST_PAUSE_S

    def _may_start(self) -> bool:
        """Takes the lock. The directory may be gone: whoever logs out loses it."""
        try:
            make_private(self._paths.socket.parent)
            return self._start_lock.acquire()
        except (CallerError, OSError) as error:
            raise DaemonUnavailableError(f"no daemon can be started: {error}") from None

    def _failed(self, failure: DaemonUnavailableError) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise failure
