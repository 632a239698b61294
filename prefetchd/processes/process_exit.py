"""Describes how processes end, and decides whether one that has ended like this is started again. Pure."""

from __future__ import annotations

import os
import signal

UNEXPLAINED = "died"
"""How a process ended whose zygote could not say, as it is dead too."""

ORPHANED = "its zygote died"
"""How a worker ended that was never heard of: it may never have begun."""

KILLED = "killed by SIGKILL"
"""How a process ended that did nothing for it: somebody else did, or the kernel, for memory."""

REFUSED = "killed by the daemon"
"""How the end of a process begins that the daemon has killed for what it said; why follows."""

MOST_DEATHS = 3
MOST_KILLS = 10
"""Deaths in a row, with nothing done in between, after which a process is not started again: of its own fault, and
killed from outside."""


def is_hopeless(deaths: int, how: str) -> bool:
    """Returns True when a process that has died so often in a row, the last time like this, will die again."""
    return deaths > (MOST_KILLS if how in (KILLED, UNEXPLAINED) else MOST_DEATHS)


def describe_exit(how: str) -> str:
    """Says what happened to a process that ended like this, after its name."""
    return f"was {how}" if how.startswith("killed") else how


def ending(status: int) -> str:
    """Describes in words what waitpid(2) gives."""
    if os.WIFSIGNALED(status):
        return f"killed by {_signal_name(os.WTERMSIG(status))}"
    return f"exited with {os.WEXITSTATUS(status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"
