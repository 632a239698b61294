"""Does what every child process of the daemon does first: die with its parent, keep quiet, take one CPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

SET_BY_THREADPOOLCTL = "KMP_DUPLICATE_LIB_OK"

OOM_SCORE = 500

FORKABLE_THREADS = frozenset(["jemalloc_bg_thd"])
"""The threads of libraries that have fork handlers. jemalloc's, which pyarrow starts as it is imported, stops for a
fork and holds no lock then (jemalloc/src/background_thread.c, background_thread_prefork0)."""

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Sends this process SIGKILL when its parent's main thread ends; ends it at once if `parent` is gone already.

    Fork clears the setting, so each child calls this itself, from its main thread.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Takes die_with_parent() back, for a process that learns of its parent's end otherwise."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0)


def die_first_for_memory() -> None:
    """Makes the kernel kill this process before its zygote, the daemon or the trainer when memory runs out: it is the
    one that is replaced without anybody noticing."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        if int(score.read_text()) < OOM_SCORE:
            score.write_text(str(OOM_SCORE))


def name_process(name: str) -> None:
    """Sets the name that ps and top show, up to 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def leave_signals_to_daemon() -> None:
    """Ignores a terminal's Ctrl-C, which reaches the whole group: only the daemon acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def send_output_to(fd: int) -> None:
    """Sends stdout and stderr to the pipe `fd`, line by line; stdin is empty."""
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def unforkable_threads() -> list[str]:
    """Names this process's other threads, those that no Python object knows of included, but for those whose library is
    known to be forked well: with any of these a forked child may find a lock that nobody will open."""
    own = threading.get_native_id()
    # The kernel's name of a thread that Python started is that of its process, before Python 3.14.
    of_python = {each.native_id: each.name for each in threading.enumerate()}
    names = []
    for task in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            if task != own and name not in FORKABLE_THREADS:
                names.append(of_python.get(task, name))
    return sorted(names)


def own_memory_bytes() -> int:
    """Returns what this process would take of memory if it shared none with the one that it was forked from: all that
    no file backs."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
    return 0


def end_after(work: Callable[[], None]) -> NoReturn:
    """Does `work` in a forked child and ends the process, with exit code 0, or 1 and a traceback. No exit hook of the
    parent's runs, nor does what the parent had in its buffers come out a second time. Never returns."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def find_thread_pools() -> None:
    """Looks which numeric libraries are loaded. threadpoolctl remembers the real path of each file that it has looked
    at: limit_threads(), also in a fork, takes a quarter of the time then."""
    had = os.environ.get(SET_BY_THREADPOOLCTL)
    import threadpoolctl

    if had is None:
        # An interpreter is started with it or without, so it decides which zygote serves.
        os.environ.pop(SET_BY_THREADPOOLCTL, None)
    threadpoolctl.ThreadpoolController()


def limit_threads() -> None:
    """Limits each numeric library that is loaded to one thread: workers are one a CPU. In an interpreter that is
    started for us variables say so already."""
    import threadpoolctl
    import torch

    torch.set_num_threads(1)
    threadpoolctl.threadpool_limits(1)
