"""Reads from /proc what a process has had of the CPUs: how long it ran, and how long it was ready and had none."""

from __future__ import annotations

import os

from prefetchd.wire.records import record

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
WAITS_FOR_DISK = "D"
"""The state (proc(5)) of a thread that waits where no signal ends it: for a disk, or a file system of another
machine."""


@record
class CpuTimes:
    """What a process has had so far: seconds that its main thread ran, seconds that this was ready and did not, and
    seconds that all its threads ran. `state` is the main thread's now, a letter (proc(5))."""

    ran_s: float
    waited_s: float
    process_s: float
    state: str


def cpu_times(pid: int) -> CpuTimes | None:
    """Returns what `pid` has had of the CPUs, or None when there is no such process or the kernel does not count
    that."""
    try:
        ran_ns, waited_ns, _ = _content(f"/proc/{pid}/schedstat").split()
        # The name, in brackets, may have brackets and spaces in it.
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        process_s = (int(fields[11]) + int(fields[12])) * TICK_S
        return CpuTimes(int(ran_ns) / 1e9, int(waited_ns) / 1e9, process_s, fields[0].decode("ascii"))
    except (OSError, ValueError, IndexError):
        return None


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1024)
    finally:
        os.close(fd)
