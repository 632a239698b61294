"""Says how a process ended, and decides whether one that has ended like this is started again. Pure.

What is done about an end depends on its kind, never on the words that describe it.
"""

from __future__ import annotations

import enum
import os
import signal

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.records import record

MOST_DEATHS = 3
MOST_KILLS = 10
"""Deaths in a row, with nothing done in between, after which a process is not started again: of its own fault, and
killed from outside."""

MAX_STATUS = 0xFFFF
"""The largest status that waitpid(2) gives."""


class ExitKind(enum.Enum):
    """The kind of a process's end, as far as it is known."""

    EXITED = "it ended itself, with a code"
    KILLED = "a signal ended it"
    UNEXPLAINED = "its zygote could not say how it ended, as that is dead too"
    ORPHANED = "its zygote died before anything was heard of it: it may never have begun"
    REFUSED = "the daemon killed it for what it said"
    FORSAKEN = "the daemon gave it up, and does not ask how it ends"


@record
class ProcessExit:
    """The end of a process; as text, what is said of it in logs and errors. `number` is the code that it exited with,
    or the signal that killed it. `reason` says why the daemon killed it."""

    kind: ExitKind
    number: int = 0
    reason: str = ""

    @classmethod
    def exited(cls, code: int) -> ProcessExit:
        return cls(ExitKind.EXITED, code)

    @classmethod
    def killed(cls, number: int) -> ProcessExit:
        return cls(ExitKind.KILLED, number)

    @classmethod
    def refused(cls, reason: object) -> ProcessExit:
        return cls(ExitKind.REFUSED, reason=str(reason))

    @classmethod
    def from_status(cls, status: int) -> ProcessExit:
        """Reads what waitpid(2) gives. Raises ProtocolError when `status`, which a child may have sent, is none."""
        if not 0 <= status <= MAX_STATUS:
            raise ProtocolError(f"a process that ended with status {status}; allowed: 0 to {MAX_STATUS}")
        return cls.killed(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else cls.exited(os.WEXITSTATUS(status))

    @classmethod
    def from_returncode(cls, code: int) -> ProcessExit:
        """Reads what subprocess.Popen.returncode gives: a signal is negative."""
        return cls.killed(-code) if code < 0 else cls.exited(code)

    def __str__(self) -> str:
        if self.kind is ExitKind.EXITED:
            return f"exited with {self.number}"
        if self.kind is ExitKind.KILLED:
            return f"killed by {_signal_name(self.number)}"
        if self.kind is ExitKind.REFUSED:
            return f"killed by the daemon: {self.reason}"
        return {
            ExitKind.UNEXPLAINED: "died",
            ExitKind.ORPHANED: "its zygote died",
            ExitKind.FORSAKEN: "forsaken",
        }[self.kind]

    @property
    def is_from_outside(self) -> bool:
        """True when the process may have done nothing for it: somebody else killed it, or the kernel, for memory."""
        return self in (KILLED, UNEXPLAINED)

    @property
    def follows_from_zygote(self) -> bool:
        """True when the zygote's death explains this one, which does not count beside it."""
        return self in (UNEXPLAINED, ORPHANED)

    @property
    def may_be_for_memory(self) -> bool:
        """True when the kernel may have ended the process to get memory back."""
        return self.kind is not ExitKind.EXITED


UNEXPLAINED = ProcessExit(ExitKind.UNEXPLAINED)
ORPHANED = ProcessExit(ExitKind.ORPHANED)
FORSAKEN = ProcessExit(ExitKind.FORSAKEN)
KILLED = ProcessExit.killed(signal.SIGKILL)
CLEAN = ProcessExit.exited(0)


def is_hopeless(deaths: int, how: ProcessExit) -> bool:
    """Returns True when a process that has died so often in a row, the last time like this, will die again."""
    return deaths > (MOST_KILLS if how.is_from_outside else MOST_DEATHS)


def describe_exit(how: ProcessExit) -> str:
    """Says what happened to a process that ended like this, after its name."""
    return f"was {how}" if how.kind in (ExitKind.KILLED, ExitKind.REFUSED) else str(how)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"
