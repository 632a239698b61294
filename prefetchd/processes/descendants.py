"""Finds and ends what a process of ours leaves behind when it dies: processes that the user's code has started.

A subreaper is given the orphans below it (prctl(2), PR_SET_CHILD_SUBREAPER): each zygote those of its workers, and the
daemon those of its zygotes. Where the subreaper has died too, they are found by their session. Decision 0101 has the
reasons.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
LOOK_AGAIN_S = 0.005

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Makes orphans below this process its children from now on. A fork does not inherit that."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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


def reap_strangers(known: Collection[int]) -> None:
    """Reaps orphans that have ended; `known` children are somebody else's to reap. Does not block."""
    for pid in children().difference(known):
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def kill_strangers(known: Collection[int]) -> bool:
    """Sends SIGKILL to all children but the `known` ones. Returns False when there are none. What they have started is
    ours next, if we are a subreaper. Does not block."""
    strangers = children().difference(known)
    for pid in strangers:
        # A child's number is its own until it is reaped, which nobody but us does.
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    reap_strangers(known)
    return bool(strangers)


def end_strangers(known: Collection[int], within_s: float) -> None:
    """Ends all children but the `known` ones, and all below them. Blocks until that is done, or for `within_s`."""
    deadline_s = time.monotonic() + within_s
    while kill_strangers(known) and time.monotonic() < deadline_s:
        time.sleep(LOOK_AGAIN_S)


def end_tree(root: int) -> None:
    """Sends SIGKILL to all below `root`, which lives or is not reaped yet. Does not block."""
    parents, found = [root], []
    try:
        while parents:
            parent = parents.pop()
            for pid in children(parent):
                with contextlib.suppress(OSError):
                    pidfd = os.pidfd_open(pid)
                    found.append(pidfd)
                    # Else the number is another's by now.
                    if pid in children(parent):
                        parents.append(pid)
                    else:
                        os.close(found.pop())
        for pidfd in found:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        for pidfd in found:
            os.close(pidfd)


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
