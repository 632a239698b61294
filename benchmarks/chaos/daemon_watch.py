"""DaemonWatch watches the daemon from outside: when it serves, when it has died, and what lay ready in its rings then.

While a daemon lives, the watch holds the lock under which clients start one. So nobody can start another before the
watch has looked at what the dead one left; then it lets the lock go, and the trainers start one themselves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import time
from collections.abc import Callable

from prefetchd_client.connection.autostart import connect

from benchmarks.chaos.processes import Processes, is_ending
from benchmarks.chaos.rings import ReadyBatch
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import RuntimePaths


@dataclasses.dataclass(frozen=True)
class Death:
    """A daemon was seen alive at `seen_s` for the last time and found dead at `at_s`; what was `ready` then. In between
    it may have taken a while to give its memory back, and trainers knew by then that it was gone."""

    seen_s: float
    at_s: float
    ready: set[ReadyBatch]


class DaemonWatch:
    """Follows one daemon after the other. `pid` is that of the daemon that serves, 0 while there is none; `deaths` are
    those so far, with what `ready` told then; `served`, when each daemon was first seen to serve: never later
    than it was seen for the last time."""

    def __init__(self, paths: RuntimePaths, processes: Processes, ready: Callable[[], set[ReadyBatch]]) -> None:
        self.pid = 0
        self.deaths: list[Death] = []
        self.served: list[float] = []
        self._paths = paths
        self._ready = ready
        self._processes = processes
        self._pidfd = -1
        self._lock = LockFile(paths.start_lock)
        self._locked = False
        self._ended = False
        self._seen_s = 0.0

    def look(self) -> str:
        """Returns what has happened since the last call, in words. To be called again and again."""
        happened = ""
        now_s = time.monotonic()
        if self.pid and select.select([self._pidfd], [], [], 0)[0]:
            os.close(self._pidfd)
            self.pid = 0
            self.deaths.append(Death(self._seen_s, time.monotonic(), self._ready()))
            self._unlock()
            happened = "the daemon is dead"
        # A daemon that is ending has said its last: the time until it is gone belongs to its death.
        if not (self.pid and is_ending(self.pid)):
            self._seen_s = now_s
        if not self.pid and (pid := self._processes.daemon()) and self._answers():
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(pid)
                self.pid = pid
                # Not now: it may be dead by the next look, and was seen alive for the last time when this one began.
                self.served.append(now_s)
                happened = f"daemon {pid} serves"
        if self.pid and not self._locked and not self._ended:
            self._locked = self._lock.acquire()
        return happened

    def end(self) -> None:
        """Releases the lock for good. Idempotent."""
        self._ended = True
        self._unlock()

    def _answers(self) -> bool:
        """Returns True when somebody listens on the socket."""
        try:
            sock = connect(self._paths, timeout_s=0.0)
        except PrefetchdError:
            return False
        if sock is not None:
            sock.close()
        return sock is not None

    def _unlock(self) -> None:
        if self._locked:
            self._lock.release()
            self._locked = False
