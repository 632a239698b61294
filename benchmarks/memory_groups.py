"""A memory cgroup with a limit, for what is to be seen where memory is short."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from prefetchd.ring.cgroups import cgroup_levels

EMPTY_WITHIN_S = 30.0


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Makes a memory cgroup inside this process's own, with a limit; what is in it is killed at the end. Raises
    OSError, saying why, where this may not be done."""
    levels = [(version, level) for version, level in cgroup_levels("memory") if (level / "cgroup.procs").exists()]
    if not levels:
        raise OSError("no memory cgroup can be seen")
    version, level = levels[0]
    group = level / f"prefetchd-{os.getpid()}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        if not limit.exists():
            raise OSError("the memory controller is not delegated to us")
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        _empty(group)
        group.rmdir()


def _empty(group: Path) -> None:
    until_s = time.monotonic() + EMPTY_WITHIN_S
    while pids := (group / "cgroup.procs").read_text().split():
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until_s:
            raise OSError(f"{group} is not empty {EMPTY_WITHIN_S:.0f} s after its processes were killed")
        time.sleep(0.01)


def kills_in(group: Path) -> int:
    """Returns how many processes of the group the kernel has killed for memory."""
    events = group / "memory.events"
    text = events.read_text() if events.exists() else (group / "memory.oom_control").read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])
