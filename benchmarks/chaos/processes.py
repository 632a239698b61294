"""Processes finds the processes of a chaos run by what no other process has: the run's own file name in their
environment, or, where they were forked from a trainer, the mark of the run's daemons."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal

from prefetchd.kill_points.kill_points import LOG_VARIABLE
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.own_segments import open_status
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.status_layout import HEAD, decode_head

PF_EXITING = 0x4
"""One of a process' flags, in Linux' include/linux/sched.h."""

ROLES = {"prefetchd-env": "env", "prefetchd-zyg": "zygote", "prefetchd-plan": "planner", "prefetchd-help": "helper"}


@dataclasses.dataclass(frozen=True)
class Found:
    """Names a process of the run; `role` is that of its kill points."""

    pid: int
    role: str


class Processes:
    """Finds the processes that carry `log` as their PREFETCHD_KILL_LOG, but for trainers, which the driver forks
    itself."""

    def __init__(self, paths: RuntimePaths, log: str) -> None:
        self._paths = paths
        self._variable = f"{LOG_VARIABLE}={log}\0".encode()
        self._mark = f"/memfd:{paths.process_mark} "

    def all(self) -> list[Found]:
        """Returns every living process."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and self._is_ours(int(name)):
                with contextlib.suppress(OSError):
                    found.append(Found(int(name), _role(int(name))))
        return found

    def of(self, role: str) -> list[int]:
        """Returns the pids of a role; of daemons only the one that serves."""
        if role == "daemon":
            daemon = self.daemon()
            return [daemon] if daemon else []
        return [each.pid for each in self.all() if each.role == role]

    def daemon(self) -> int:
        """Returns the pid of the daemon that wrote the status segment, or 0 when it is dead."""
        try:
            with open(open_status(self._paths), "rb") as status:
                pid = decode_head(status.read(HEAD.size)).pid
        except (FileNotFoundError, ProtocolError):
            return 0
        return pid if self._is_ours(pid) else 0

    def _is_ours(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                ours = self._variable in environment.read()
            return (ours or self._is_marked(pid)) and not is_dead(pid)
        except OSError:
            return False

    def _is_marked(self, pid: int) -> bool:
        for fd in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(fd.path).startswith(self._mark):
                    return True
        return False


def _role(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as comm:
        name = comm.read().strip()
    if name.startswith("prefetchd-w"):
        return "worker"
    return ROLES.get(name, "daemon")


def is_dead(pid: int) -> bool:
    """Returns True for a process that is gone, and for its corpse."""
    return not (stat := _stat(pid)) or stat[0] in "ZX"


def is_ending(pid: int) -> bool:
    """Returns True as soon as the process will do nothing more: it is told dead later, once its memory has been given
    back."""
    return not (stat := _stat(pid)) or bool(int(stat[6]) & PF_EXITING)


def _stat(pid: int) -> list[str]:
    """Returns what proc_pid_stat(5) tells from the state on; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()
    except OSError:
        return []


def kill(pid: int) -> bool:
    """Sends SIGKILL, and waits for the death. Returns False when the process was dead already."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if is_dead(pid):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], 10)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
