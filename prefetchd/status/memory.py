"""Measures what a process has of memory for itself, out of /proc: its share of every page (PSS), ring pages
included."""

from __future__ import annotations

import time
from typing import Any

MEASURE_WITHIN_S = 0.04
"""The most time that measuring takes: mapped rings are large, and this walks all of them. What is not known by then
stays unknown."""


def add_pss(snapshot: dict[str, Any]) -> None:
    """Sets `pss_bytes` of every worker in `snapshot`: bytes, or None where that is not known. The command measures this
    and not the daemon, which it would hold up."""
    until_s = time.monotonic() + MEASURE_WITHIN_S
    for stream in snapshot["streams"]:
        for worker in stream["workers"]:
            known = worker["pid"] and time.monotonic() < until_s
            worker["pss_bytes"] = pss_bytes(worker["pid"]) if known else None


def pss_bytes(pid: int) -> int | None:
    """Return what a process has of memory for itself; None when that is not known."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
            for line in rollup:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return None
