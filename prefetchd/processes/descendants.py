"""Finds and ends the processes below one of ours: those that the user's code has started. What it has left behind is
found by its session, where no subreaper was given it (processes.orphans). Decision 0101 has the reasons."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MOST_LOOKS = 100
"""Looks at all below a process before they are killed: who starts others without end is not waited for."""


def children(pid: int = 0) -> set[int]:
    """Lists the children of a process, by default of this one, dead ones that nobody has reaped included; empty where
    the kernel does not say."""
    found: set[int] = set()
    tasks = f"/proc/{pid or 'self'}/task"
    with contextlib.suppress(OSError):
        for thread in os.listdir(tasks):
            with contextlib.suppress(OSError, ValueError):
                found |= set(map(int, Path(f"{tasks}/{thread}/children").read_text().split()))
    return found


def end_tree(root: int) -> None:
    """Sends SIGKILL to all below `root`, which lives or is not reaped yet. Does not block."""
    pidfds: dict[int, int] = {}
    try:
        # One that dies meanwhile gives its children to a process whose own were listed before. It does so once: a look
        # that finds nobody new has seen all.
        for _ in range(MOST_LOOKS):
            if not _look_below(root, pidfds):
                break
        for pidfd in pidfds.values():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        for pidfd in pidfds.values():
            os.close(pidfd)


def _look_below(root: int, pidfds: dict[int, int]) -> bool:
    """Adds a descriptor of each process below `root` to `pidfds`, by its number. Returns False when there is no new
    one."""
    before, parents = len(pidfds), [root]
    while parents:
        parent = parents.pop()
        for pid in children(parent):
            if pid in pidfds:
                parents.append(pid)
                continue
            with contextlib.suppress(OSError):
                pidfds[pid] = os.pidfd_open(pid)
                # Else the number is another's by now.
                if pid in children(parent):
                    parents.append(pid)
                else:
                    os.close(pidfds.pop(pid))
    return len(pidfds) > before


def end_session(leader: int) -> None:
    """Sends SIGKILL to what is left of the session of a process that has died. Does not block."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                _kill_if_of(int(name), leader)


def _kill_if_of(pid: int, leader: int) -> None:
    """Kills `pid` if it is of the leader's session: by a descriptor, which is of the same process before and after the
    look."""
    with contextlib.suppress(OSError):
        if os.getsid(pid) != leader or pid == leader:
            return
        pidfd = os.pidfd_open(pid)
        try:
            if os.getsid(pid) == leader:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
