"""Reads from /proc how long a process has run on the CPUs, and how long it was ready and had none."""

from __future__ import annotations

import os


def cpu_times_s(pid: int) -> tuple[float, float] | None:
    """Returns (seconds that the main thread of `pid` ran, seconds that it was ready and did not), or None when there is
    no such process or the kernel does not count that."""
    try:
        fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        ran_ns, waited_ns, _ = os.read(fd, 128).split()
        return int(ran_ns) / 1e9, int(waited_ns) / 1e9
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
