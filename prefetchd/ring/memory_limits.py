"""What there is to take: free space of a store, headroom of the memory cgroup. Reads, decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

_UNLIMITED = 1 << 60


def free_bytes(directory: str) -> int:
    """Bytes that a file in `directory` may still take."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def cgroup_headroom_bytes(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> int | None:
    """What this process's cgroups (version 1 or 2, all levels) leave of memory, or None without a limit.

    File cache that the kernel gives up under pressure counts as left.
    """
    try:
        lines = Path(membership).read_text().splitlines()
    except OSError:
        return None
    least: int | None = None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, base = ("memory.max", "memory.current"), Path(root)
            if not (base / "cgroup.controllers").exists():
                base = base / "unified"
        elif "memory" in controllers.split(","):
            names, base = ("memory.limit_in_bytes", "memory.usage_in_bytes"), Path(root) / "memory"
        else:
            continue
        for level in _levels(base, path):
            limit, used = (_number(level / name) for name in names)
            if limit is not None and used is not None and limit < _UNLIMITED:
                headroom = max(0, limit - used + _reclaimable(level / "memory.stat"))
                least = headroom if least is None else min(least, headroom)
    return least


def _levels(base: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part and part != ".."]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


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
