"""Ends orphans that are given to this process: processes that the user's code has started, left behind by one of ours.

A subreaper is given the orphans below it (prctl(2), PR_SET_CHILD_SUBREAPER): each zygote those of its workers, and the
daemon those of its zygotes. Where the subreaper has died too, processes.descendants finds them. Decision 0101 has the
reasons.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

from prefetchd.processes.descendants import children

_PR_SET_CHILD_SUBREAPER = 36
LOOK_AGAIN_S = 0.005

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Makes orphans below this process its children from now on. A fork does not inherit that."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_in_own_session() -> set[int]:
    """Returns the children in this process's own session. Of a process that gives each of its own another one, these
    are somebody else's: of the shell, say, that became this process."""
    own, found = os.getsid(0), set()
    for pid in children():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == own:
                found.add(pid)
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
