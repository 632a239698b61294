"""Counts processes that the kernel killed because the memory cgroup, or the machine, had no more memory. Sources:
cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst (memory.oom_control) of the kernel."""

from __future__ import annotations

import contextlib
from pathlib import Path

from prefetchd.ring.cgroups import MEMBERSHIP, ROOT, cgroup_levels

RECENT_S = 5.0
_FILES = {1: "memory.oom_control", 2: "memory.events"}


class OomKills:
    """Counts the kills in this process's own group, where its workers are too, and in those of trainers, where the
    workers are that are forked from them. Where no group can be read there are none."""

    def __init__(self, now_s: float, root: str = ROOT, membership: str = MEMBERSHIP) -> None:
        self._root = root
        self._files: list[Path] = []
        self._count = 0
        self._unexplained = 0
        self._grew_at_s = now_s
        self.watch(membership)

    def watch(self, membership: str) -> None:
        """Counts kills in the group of another process too, from now on; /proc describes that group in the file
        `membership`."""
        files = [level / _FILES[version] for version, level in cgroup_levels("memory", self._root, membership)]
        # A container may not see its own group under its own name: then the first that it sees is its own.
        file = next((file for file in files if file.exists()), None)
        if file is not None and file not in self._files:
            self._files.append(file)
            self._count += _kills(file)

    def look(self, now_s: float) -> bool:
        """Notices new kills, and returns True when there are any; to be called every now and then."""
        self._files = [file for file in self._files if file.exists()]
        count = self._read()
        if now_s - self._grew_at_s > RECENT_S:
            # They were others': a trainer is in the same group often enough.
            self._unexplained = 0
        grows = count > self._count
        if grows:
            self._unexplained += count - self._count
            self._grew_at_s = now_s
        self._count = count
        return grows

    def claim(self, now_s: float) -> int:
        """Claims a kill for a worker that was killed just now: returns the count of all kills so far if it was one of
        them, else 0."""
        self.look(now_s)
        if not self._unexplained:
            return 0
        self._unexplained -= 1
        return self._count

    def _read(self) -> int:
        return sum(map(_kills, self._files))


def _kills(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (line.split() for line in file.read_text().splitlines())
        return next((int(words[1]) for words in lines if words[0] == "oom_kill"), 0)
    return 0
