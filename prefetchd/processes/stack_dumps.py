"""Takes stacks of other processes from outside: a signal makes faulthandler write them, even while C code keeps the
interpreter to itself.

A child registers with the file of its status; the dump is appended behind the status. The signal is a real-time one
that nobody is known to use. It is sent only to a process that catches it: its default would be the end of the process.
Decision 0019 has the reasons.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import re
import signal
from pathlib import Path

from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.worker_status import STACK_OFFSET

STACK_SIGNAL = int(signal.SIGRTMAX) - 5
STACK_LIMIT_BYTES = 256 * 1024
GIST_FRAMES = 5

_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<name>.*)')
_IMPORTING = "<frozen importlib"
_OURS = re.compile(r"/prefetchd/workers/\w+\.py$")


# --- in the child ---


def answer_with_stacks(fd: int) -> None:
    """Makes the signal write all of this process's threads' stacks to `fd` from now on; `fd` stays open."""
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


# --- in the daemon ---


def ask_for_stacks(pid: int, pidfd: int, fd: int) -> bool:
    """Makes the child write its stacks behind the status in `fd`. Returns False when it would not."""
    if not _catches(pid):
        return False
    os.ftruncate(fd, STACK_OFFSET)
    # The offset is the child's too: it writes where this says.
    os.lseek(fd, STACK_OFFSET, os.SEEK_SET)
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
        return True
    return False


def read_stacks(fd: int) -> str:
    """Returns what was written by now."""
    return os.pread(fd, STACK_LIMIT_BYTES, STACK_OFFSET).decode("utf-8", "replace")


def process_state(pid: int) -> str:
    """Returns the state in /proc, one letter as proc(5) lists them, or "" when there is no such process."""
    found = process_stat(pid)
    return found.state if found is not None else ""


def gist(stacks: str) -> list[str]:
    """Lists the innermost frames of the user's code, the innermost first, in the thread that does our tasks; in
    whatever thread there is when none does."""
    frames = [each for each in _frames(stacks) if not each["path"].startswith(_IMPORTING)]
    return [f"{each['path']}:{each['line']} in {each['name']}" for each in frames[:GIST_FRAMES]]


def imported(stacks: str) -> str:
    """Returns the file of the module that this thread is importing, the innermost one; empty when it imports none."""
    frames = _frames(stacks)
    for place, each in enumerate(frames):
        if each["name"] == "<module>" and any(outer["path"].startswith(_IMPORTING) for outer in frames[place:]):
            return each["path"]
    return ""


def _frames(stacks: str) -> list[re.Match[str]]:
    """Returns the frames of the user's code in that thread, the innermost first."""
    threads = [block for block in re.split(r"\n\s*\n", stacks) if _FRAME.search(block)]
    working = [block for block in threads if any(_OURS.search(each["path"]) for each in _FRAME.finditer(block))]
    for block in [*working, *threads][:1]:
        found = _FRAME.finditer(block)
        return list(itertools.takewhile(lambda each: not _OURS.search(each["path"]), found))
    return []


def _catches(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError, IndexError):
        caught = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").split("SigCgt:")[1].split()[0]
        return bool(int(caught, 16) >> (STACK_SIGNAL - 1) & 1)
    return False
