"""What there is to take: free space of a store, headroom of the memory cgroup. Reads, decides nothing."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from prefetchd.ring.cgroups import MEMBERSHIP, ROOT, cgroup_levels

_UNLIMITED = 1 << 60
# Beyond memory.high nothing fails, but every allocation is slowed down.
_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
_FREE_HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages"


def free_bytes(directory: str) -> int:
    """Bytes that a file in `directory` may still take."""
    found = os.statvfs(directory)
    if found.f_blocks:
        return found.f_bavail * found.f_frsize
    # Mounted without a bound of its own: what the machine has left.
    if found.f_bsize > mmap.PAGESIZE:
        pages = _number(Path(_FREE_HUGE_PAGES.format(found.f_bsize >> 10)))
        return (pages or 0) * found.f_bsize
    return _available_bytes()


def _available_bytes() -> int:
    """What the kernel would give to a new process without swapping, as proc_meminfo(5) has it."""
    with open("/proc/meminfo") as file:
        found = dict(line.split(":") for line in file)
    return int(found["MemAvailable"].removesuffix(" kB\n")) << 10


def cgroup_headroom_bytes(root: str = ROOT, membership: str = MEMBERSHIP) -> int | None:
    """What this process's cgroups (version 1 or 2, all levels) leave of memory, or None without a limit.

    File cache that the kernel gives up under pressure counts as left.
    """
    least: int | None = None
    for version, level in cgroup_levels("memory", root, membership):
        used = _number(level / _USED[version])
        for name in _LIMITS[version]:
            limit = _number(level / name)
            if limit is not None and used is not None and limit < _UNLIMITED:
                headroom = max(0, limit - used + _reclaimable(level / "memory.stat"))
                least = headroom if least is None else min(least, headroom)
    return least


def _reclaimable(stat: Path) -> int:
    try:
        found = dict(line.split(" ", 1) for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(found.get("total_inactive_file", found.get("inactive_file", "0")))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no number: no limit
        return None
