"""What every child process of the daemon does first: die with its parent, keep quiet, take one CPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

OOM_SCORE = 500

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent's main thread ends; ends at once if `parent` is gone already.

    Fork clears the setting, so each child calls this itself, from its main thread.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_first_for_memory() -> None:
    """When memory runs out the kernel kills this process before its zygote, the daemon or the trainer: it is the one
    that is replaced without anybody noticing."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(score.read_text()) < OOM_SCORE:
            score.write_text(str(OOM_SCORE))


def name_process(name: str) -> None:
    """The name that ps and top show, up to 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def leave_signals_to_daemon() -> None:
    """A terminal's Ctrl-C reaches the whole group: only the daemon acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def send_output_to(fd: int) -> None:
    """stdout and stderr go to the pipe `fd`, line by line, and stdin is empty."""
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def thread_count() -> int:
    """Threads of this process, those that no Python object knows of included."""
    return len(os.listdir("/proc/self/task"))
