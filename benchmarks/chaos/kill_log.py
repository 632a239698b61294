"""Reads what PREFETCHD_KILL_LOG's file has of processes that died at kill points: a line each of point, pid, role and
when (monotonic clock, seconds)."""

from __future__ import annotations

import os
from collections import Counter


def kills_by_point(log: str | os.PathLike[str]) -> Counter[str]:
    """Counts how often a process has died at which point."""
    try:
        with open(log) as lines:
            return Counter(line.split()[0] for line in lines)
    except FileNotFoundError:
        return Counter()


def kills_by_pid(log: str | os.PathLike[str]) -> dict[int, float]:
    """Returns when which process has died (monotonic clock, seconds)."""
    try:
        with open(log) as lines:
            words = [line.split() for line in lines]
    except FileNotFoundError:
        return {}
    return {int(pid): float(at_s) for _, pid, _, at_s in words}
