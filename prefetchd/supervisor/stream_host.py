"""Holds a stream's zygote for the daemon: forked by an environment zygote, or from the trainer."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Collection

from prefetchd.processes.process_exit import UNEXPLAINED
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.child_output import OnOutput
from prefetchd.supervisor.child_process import ChildProcess, OnEnd, OnMessage
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import NoDescriptorError, close_all
from prefetchd.wire.os_errors import why

DEAD = -1
"""What a pidfd says of a process that has been reaped."""


class StreamHost:
    """A stream's zygote. `child` is None until it was forked; `environment` is the digest of the environment zygote
    that does so, or None for one that was forked from the trainer. `stream` is 0 as long as nobody knows whose it
    is."""

    def __init__(self, stream: int = 0, environment: bytes | None = None) -> None:
        self.stream = stream
        self.environment = environment
        self.child: ChildProcess | None = None
        self.note = WorkerStatusFile()
        self.workers: set[int] = set()


def handed_child(
    watcher: Watcher,
    pid: int,
    fds: list[int],
    on_message: OnMessage,
    on_end: OnEnd,
    on_output: OnOutput,
) -> ChildProcess:
    """Takes a process that a zygote of ours has forked, by its pidfd, control socket and output pipe. It may be dead by
    now. Takes `fds` over, whatever happens. Raises ProtocolError when they are something else, NoDescriptorError."""
    pidfd, control, output = _checked(pid, fds, (pid, DEAD))
    return ChildProcess(watcher, socket.socket(fileno=control), pid, pidfd, output, on_message, on_end, on_output)


def foreign_child(
    watcher: Watcher,
    pid: int,
    fds: list[int],
    on_message: OnMessage,
    on_end: OnEnd,
    on_output: OnOutput,
    *,
    nice: int,
) -> ChildProcess:
    """Takes a process that a trainer has started, and schedules it as the daemon's own children are; else as
    handed_child(). Raises ProtocolError also when it is dead by now."""
    pidfd, control, output = _checked(pid, fds, (pid,))
    _schedule(pid, nice)
    child = ChildProcess(watcher, socket.socket(fileno=control), pid, pidfd, output, on_message, on_end, on_output)
    # Whoever reaps it tells us nothing.
    child.ended_as(UNEXPLAINED)
    return child


def _checked(pid: int, fds: list[int], allowed: Collection[int]) -> tuple[int, int, int]:
    """Returns the descriptors of a process that is one of `allowed`. Raises ProtocolError when they are something else,
    and NoDescriptorError when that cannot be looked at; it has closed them then."""
    try:
        if len(fds) != 3:
            raise ProtocolError(f"a forked process came with {len(fds)} descriptors; allowed: 3")
        pidfd, control, output = fds
        if pid <= 0 or _pid_behind(pidfd) not in allowed:
            raise ProtocolError(f"what came as the pidfd of process {pid} is none")
        if not stat.S_ISFIFO(os.fstat(output).st_mode):
            raise ProtocolError(f"what came as the output of process {pid} is no pipe")
        with socket.socket(fileno=os.dup(control)) as peer:
            if (peer.family, peer.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
                raise ProtocolError(f"what came as the control socket of process {pid} is of another kind")
    except (OSError, ProtocolError) as error:
        close_all(fds)
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise NoDescriptorError from None
        raise error if isinstance(error, ProtocolError) else ProtocolError(f"a forked process: {why(error)}") from None
    return pidfd, control, output


def _schedule(pid: int, nice: int) -> None:
    """Schedules the process as batch work, on the daemon's CPUs: the trainer may be bound to few."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)


def _pid_behind(pidfd: int) -> int:
    """Returns the process of a pidfd, as this process numbers it; DEAD when it has been reaped, 0 for another
    descriptor."""
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return 0
