"""Recognise a fork of the trainer whose first sample waits for threads that no fork has.

A fork has only the thread that forked. A library that keeps a pool of threads (polars, a ThreadPoolExecutor,
TensorFlow, gRPC) waits in the fork for threads that do not exist, for ever. This is the evidence, all of it:

1. The trainer has threads beside the one that calls next().
2. No batch has come yet.
3. A worker waits in futex(2) with all its threads: for a lock, a condition or another thread. A sample that sleeps,
   reads or waits for the network waits elsewhere. The other workers do so, too, or wait for a task.
4. That has not changed for NO_PROGRESS_S, and no CPU time was used meanwhile.

Time alone does not count: on a busy machine a worker waits for a CPU, and not in futex(2).
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

NO_PROGRESS_S = 5.0
LOOK_EVERY_S = 1.0
_FUTEX_CALLS = frozenset([b"202", b"98", b"449"])
"""The numbers of futex(2) on x86_64 and aarch64, and of futex_waitv(2)."""
_IDLE_CALLS = frozenset([b"47", b"212"])
"""The numbers of recvmsg(2) on x86_64 and aarch64, in which a worker waits for a task."""


class StuckFork:
    """Watch the workers of one fork, from a call of next() that waits for the first batch."""

    def __init__(self, fork: int) -> None:
        """`fork` is the process id of the trainer's fork, whose children are the workers."""
        self._fork = fork
        self._seen: dict[str, int] = {}
        self._since_s = 0.0
        self.look_at_s = LOOK_EVERY_S
        """The time, since next() was called, of the next look."""

    def look(self, waited_s: float) -> bool:
        """Return True when the workers are stuck. `waited_s` is the time since next() was called."""
        self.look_at_s = waited_s + LOOK_EVERY_S
        seen = _waiting_threads(self._fork)
        if not seen or seen != self._seen:
            self._seen, self._since_s = seen, waited_s
            return False
        return waited_s - self._since_s >= NO_PROGRESS_S and bool(other_threads())


def other_threads() -> list[str]:
    """Return the names of this process's other threads."""
    own = threading.get_native_id()
    of_python = {each.native_id: each.name for each in threading.enumerate()}
    names = []
    for task in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):
            if task != own:
                names.append(of_python.get(task) or Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return sorted(set(names))


def _waiting_threads(fork: int) -> dict[str, int]:
    """Return the CPU time in ticks of each thread of the fork's workers; nothing unless all of them wait, and one
    worker with all its threads in futex(2)."""
    found: dict[str, int] = {}
    in_futex = False
    for child in _children(fork):
        try:
            if not Path(f"/proc/{child}/comm").read_bytes().startswith(b"prefetchd-w"):
                continue
            calls = set()
            for task in os.listdir(f"/proc/{child}/task"):
                directory = f"/proc/{child}/task/{task}"
                # "running", or the number of the system call and its arguments.
                calls.add(Path(directory, "syscall").read_bytes().partition(b" ")[0])
                fields = Path(directory, "stat").read_bytes().rpartition(b")")[2].split()
                found[task] = int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            return {}
        if not calls <= _FUTEX_CALLS | _IDLE_CALLS:
            return {}
        in_futex = in_futex or calls <= _FUTEX_CALLS
    return found if in_futex else {}


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
