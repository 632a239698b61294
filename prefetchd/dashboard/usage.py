"""Measures CPU and memory of the daemon, its workers and its rings, out of /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from prefetchd.status.memory import pss_bytes

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
MEMORY_EVERY_S = 5.0
"""Seconds between two looks at memory: the kernel walks a process's pages for each."""
MOST_PROCESSES = 64
MEMORY_WITHIN_S = 0.05


class Usage:
    """Remembers what processes had used at the last look, so that the next one knows their shares of a CPU."""

    def __init__(self) -> None:
        self._cpu: dict[int, tuple[float, float]] = {}
        self._memory: dict[int, int | None] = {}
        self._memory_at_s = -MEMORY_EVERY_S

    def look(self, status: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return for each process what it is, its share of one CPU since the last look, and its memory in bytes; None
        where that is not known."""
        processes = [(status["daemon"]["pid"], "daemon", "")]
        for stream in status["streams"]:
            processes += [(w["pid"], f"worker {w['number']}", stream["name"]) for w in stream["workers"] if w["pid"]]
        now_s = time.monotonic()
        pids = [pid for pid, _, _ in processes[:MOST_PROCESSES]]
        if now_s - self._memory_at_s >= MEMORY_EVERY_S:
            self._memory_at_s = now_s
            until_s = now_s + MEMORY_WITHIN_S
            self._memory = {pid: pss_bytes(pid) if time.monotonic() < until_s else None for pid in pids}
        cpu = {pid: (now_s, spent_s) for pid in pids if (spent_s := _cpu_s(pid)) is not None}
        before, self._cpu = self._cpu, cpu
        return [
            {"what": what, "stream": name, "pid": pid, "cpu": _share(before.get(pid), cpu.get(pid))}
            | {"memory_bytes": self._memory.get(pid)}
            for pid, what, name in processes[:MOST_PROCESSES]
        ]


def _share(before: tuple[float, float] | None, now: tuple[float, float] | None) -> float | None:
    if before is None or now is None or now[0] <= before[0]:
        return None
    return round(max(0.0, now[1] - before[1]) / (now[0] - before[0]), 4)


def _cpu_s(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
    except (OSError, IndexError, ValueError):
        return None
