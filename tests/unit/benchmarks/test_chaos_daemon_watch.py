"""What the watch of a chaos run tells of a daemon's life."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from benchmarks.chaos.daemon_watch import DaemonWatch
from prefetchd.wire.runtime_paths import runtime_paths


class Only:
    """Finds one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def daemon(self) -> int:
        return self.pid


def test_a_daemon_that_dies_at_once_has_not_served_after_its_death(tmp_path):
    """Found by chaos: a loader that was closed after such a death was taken for one that had a daemon."""
    tmp_path.chmod(0o700)
    paths = runtime_paths(tmp_path / "d.sock", {"XDG_STATE_HOME": str(tmp_path)})
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    processes = Only(pid)
    watch = DaemonWatch(paths, processes, set)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as listening:
        listening.bind(str(paths.socket))
        listening.listen()
        assert watch.look() == f"daemon {pid} serves"
        processes.pid = 0
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert watch.look() == "the daemon is dead"
    watch.end()
    (served_s,), (death,) = watch.served, watch.deaths
    assert served_s <= death.seen_s <= death.at_s
