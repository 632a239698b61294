"""Reconnection comes back to a daemon that has died, or been stopped, without ever blocking: the trainer goes on
meanwhile."""

from __future__ import annotations

import socket
import time

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import CallerError, DaemonUnavailableError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import RuntimePaths, make_private
from prefetchd_client.connection.autostart import MOST_FAILED_STARTS, START_TIMEOUT_S, Launch, connect, what_it_says

MANAGER_GRACE_S = 10.0
"""Seconds for a service manager to start the daemon again: our units wait for 5 s before they do."""
SUPERVISOR_GRACE_S = 2.0
"""Seconds for whoever ran it in the foreground: a script starts it at once, or never."""
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.25
START_PAUSE_S = 0.004
"""A daemon that we start serves within a small part of a second: whoever waits for it looks often."""
START_IS_SHORT_S = 1.0
MOST_LAUNCHES = 10


class Reconnection:
    """Makes one attempt to reach a daemon on `paths`, in short steps. A daemon that was `supervised`, or `managed` by a
    service manager, is first waited for: whoever ran it may start it again. Else one is started here, with the
    configuration that the former one had."""

    def __init__(
        self,
        paths: RuntimePaths,
        *,
        supervised: bool,
        managed: bool = False,
        config: bytes = b"",
        lost_s: float | None = None,
    ) -> None:
        """`lost_s` is when the last daemon was lost that had answered; None: now. Daemons that came since and died
        before they answered do not prolong the wait."""
        self.error: DaemonUnavailableError | None = None
        self._paths = paths
        self._config = config
        grace_s = MANAGER_GRACE_S if managed else SUPERVISOR_GRACE_S if supervised else 0.0
        self._may_start_at_s = (time.monotonic() if lost_s is None else lost_s) + grace_s
        self._pause_s = FIRST_PAUSE_S
        self._next_step_s = 0.0
        self._start_lock = LockFile(paths.start_lock)
        self._starting: Launch | None = None
        self._launches = 0
        self._launched_s = 0.0
        self._failed_starts = 0

    @property
    def pause_s(self) -> float:
        """Seconds until the next step can do anything."""
        return max(0.0, self._next_step_s - time.monotonic())

    def step(self) -> socket.socket | None:
        """Makes one step, and returns a connection, or None: not yet, or never if `error` says so. Does not block."""
        if self.error is not None or self.pause_s:
            return None
        sock = None
        try:
            sock = connect(self._paths, timeout_s=0.0)
            if sock is None and self._starting is not None:
                self._see_to_the_launch(self._starting)
            elif sock is None:
                self._see_to_a_daemon()
        except DaemonUnavailableError as error:
            self.error = error
            return None
        now_s = time.monotonic()
        self._next_step_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        # The pause doubles while nobody answers; a daemon that we have just started answers sooner than that.
        if self._starting is not None and now_s < self._launched_s + START_IS_SHORT_S:
            self._next_step_s = now_s + START_PAUSE_S
        if sock is not None:
            # A launch ends a moment after its daemon serves: that is not waited for.
            if self._starting is not None:
                self._starting.leave()
                self._starting = None
            self.close()
        return sock

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a fork needs which goes on with this attempt."""
        fds = self._starting.descriptors if self._starting is not None else []
        return [*fds, self._start_lock.fd] if self._start_lock.fd >= 0 else fds

    def close(self) -> None:
        """Ends what is under way. Idempotent. Waits for a daemon that it has begun to start: that detaches itself
        within a second."""
        if self._starting is not None:
            if not self._starting.wait(START_TIMEOUT_S):
                self._starting.end()
            self._starting.leave()
            self._starting = None
        self._start_lock.release()

    def abandon(self) -> None:
        """Drops the attempt in the one of two processes that does not go on with it after a fork. Idempotent."""
        if self._starting is not None:
            self._starting.leave()
            self._starting = None
        self._start_lock.leave()

    def _see_to_the_launch(self, starting: Launch) -> None:
        if not starting.wait(0.0):
            if time.monotonic() < self._launched_s + START_TIMEOUT_S:
                return
            starting.end()
            failure: DaemonUnavailableError | None = DaemonUnavailableError(
                f"the daemon did not start within {START_TIMEOUT_S:.0f} s; {what_it_says(self._paths)}"
            )
        else:
            failure = starting.failure()
        # Whatever became of it, the lock is free for others; the next step may take it again.
        self._starting = None
        self._start_lock.release()
        self._pause_s = FIRST_PAUSE_S
        if failure is None and self._launches >= MOST_LAUNCHES:
            failure = DaemonUnavailableError(f"daemons that are started end at once; {what_it_says(self._paths)}")
        if failure is not None:
            self._failed(failure)

    def _see_to_a_daemon(self) -> None:
        if time.monotonic() >= self._may_start_at_s and self._may_start():
            try:
                self._starting = Launch(self._paths, self._config)
            except DaemonUnavailableError as failure:
                self._start_lock.release()
                self._failed(failure)
                return
            self._launches += 1
            self._launched_s = time.monotonic()
            kill_point("client.daemon.launched")
            self._pause_s = FIRST_PAUSE_S

    def _may_start(self) -> bool:
        """Takes the start lock, and returns True if it is ours. Makes the socket's directory, which may be gone: a
        logout removes it."""
        try:
            make_private(self._paths.socket.parent)
            return self._start_lock.acquire()
        except (CallerError, OSError) as error:
            raise DaemonUnavailableError(f"no daemon can be started: {error}") from None

    def _failed(self, failure: DaemonUnavailableError) -> None:
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            raise failure
