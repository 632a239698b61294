"""Reads what PREFETCHD_KILL_LOG's file has of processes that died at kill points."""

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
