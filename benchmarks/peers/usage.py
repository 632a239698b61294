"""This module reads what a contestant's processes have used: CPU time and memory, of all of them, also of a daemon.

A process belongs to a contestant when it has its mark in its environment: a daemon is nobody's child. Only Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

MARK = "PREFETCHD_SOCKET"
"""Each contestant's run has a path of its own in it, ours or not."""


def marked(mark: str) -> list[Path]:
    """Returns the directories in /proc of the processes that have this mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(Path("/proc", name))
    return found


def cpu_s(mark: str) -> float:
    """Returns the CPU time of these processes, and of their children that have ended and were waited for."""
    return sum(used for _, used in _cpu_by_process(mark).values()) / os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """Measures the CPU time of these processes from now on."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._before = _cpu_by_process(mark)

    def spent_s(self) -> float:
        """Returns what was spent since, but for what orphans that have ended have spent at last."""
        return cpu_between(self._before, _cpu_by_process(self._mark)) / os.sysconf("SC_CLK_TCK")


def cpu_between(before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]]) -> int:
    """Returns what was spent between two states, each the parent and the time of each process, in that time's unit.
    What a process had spent that has ended since is in its parent's time now, if that waited for it; an orphan's is in
    nobody's."""
    counted = (used for pid, (parent, used) in before.items() if pid in after or parent in after)
    return sum(used for _, used in after.values()) - sum(counted)


def _cpu_by_process(mark: str) -> dict[int, tuple[int, int]]:
    """Returns the parent of each process, and its clock ticks with those of children that it has waited for."""
    found = {}
    for process in marked(mark):
        with contextlib.suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            found[int(process.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    return found


def pss_mb(mark: str) -> float:
    """Returns the PSS of these processes: memory that several of them share counts once."""
    kib = 0
    for process in marked(mark):
        with contextlib.suppress(OSError):
            kib += pss_kib((process / "smaps_rollup").read_text())
    return kib * 1024 / 1e6


def pss_kib(rollup: str) -> int:
    """Returns what a smaps_rollup file says."""
    return next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def end_all(mark: str) -> None:
    """Kills what is left of a contestant. The caller has never had the mark itself."""
    for process in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)
