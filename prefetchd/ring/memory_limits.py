"""Measures what there is to take: free space of a store, headroom of the memory cgroup. Reads, decides nothing."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from prefetchd.ring.cgroups import MEMBERSHIP, ROOT, cgroup_levels

_UNLIMITED = 1 << 60
# Beyond memory.high nothing fails, but every allocation is slowed down.
_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
_HUGE_PAGES = "/sys/kernel/mm/hugepages/hugepages-{}kB/{}_hugepages"


def free_bytes(directory: str) -> int:
    """Returns the bytes that a file in `directory` may still take."""
    found = os.statvfs(directory)
    if found.f_blocks:
        return found.f_bavail * found.f_frsize
    # Mounted without a bound of its own: what the machine has left.
    if found.f_bsize > mmap.PAGESIZE:
        return _huge_bytes(found.f_bsize, "free")
    return available_bytes()


def total_bytes(directory: str) -> int:
    """Returns the bytes that files in `directory` may take together."""
    found = os.statvfs(directory)
    if found.f_blocks:
        return found.f_blocks * found.f_frsize
    if found.f_bsize > mmap.PAGESIZE:
        return _huge_bytes(found.f_bsize, "nr")
    return _machine_bytes("MemTotal")


def mapped_limit_bytes() -> int | None:
    """Returns how long a file that this process makes, and others of the user's map, may be; None without a limit."""
    # Of an address space there must be enough for all else, and for the rings of other loaders.
    shares = ((resource.RLIMIT_FSIZE, 4), (resource.RLIMIT_AS, 16))
    limits = [(resource.getrlimit(which)[0], share) for which, share in shares]
    return min((limit // share for limit, share in limits if limit != resource.RLIM_INFINITY), default=None)


def available_bytes() -> int:
    """Returns what the kernel would give to a new process without swapping."""
    return _machine_bytes("MemAvailable")


def left_bytes() -> int:
    """Returns what this process and its children may still have of memory: the machine's, or their cgroup's."""
    headroom_bytes = cgroup_headroom_bytes()
    return available_bytes() if headroom_bytes is None else min(available_bytes(), headroom_bytes)


def _huge_bytes(page_bytes: int, which: str) -> int:
    """Returns the bytes of all pages of that size, or of those that are free, as `which` says."""
    return (_number(Path(_HUGE_PAGES.format(page_bytes >> 10, which))) or 0) * page_bytes


def _machine_bytes(which: str) -> int:
    """Reads one line of proc_meminfo(5), in bytes."""
    with open("/proc/meminfo") as file:
        found = dict(line.split(":") for line in file)
    return int(found[which].removesuffix(" kB\n")) << 10


def cgroup_headroom_bytes(root: str = ROOT, membership: str = MEMBERSHIP) -> int | None:
    """Returns what this process's cgroups (version 1 or 2, all levels) leave of memory, or None without a limit.

    File cache that the kernel gives up under pressure counts as left.
    """
    left = []
    for version, level, limit in _cgroup_limits(root, membership):
        used = _number(level / _USED[version])
        if used is not None:
            left.append(max(0, limit - used + _reclaimable(level / "memory.stat")))
    return min(left, default=None)


def cgroup_limit_bytes(root: str = ROOT, membership: str = MEMBERSHIP) -> int | None:
    """Returns the least memory limit of this process's cgroups, or None without one."""
    return min((limit for _, _, limit in _cgroup_limits(root, membership)), default=None)


def _cgroup_limits(root: str, membership: str) -> Iterator[tuple[int, Path, int]]:
    """Yields (version, directory, limit) of each cgroup that has a limit."""
    for version, level in cgroup_levels("memory", root, membership):
        for name in _LIMITS[version]:
            limit = _number(level / name)
            if limit is not None and limit < _UNLIMITED:
                yield version, level, limit


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
