"""Tells which process a pid is, out of /proc: by when it started, as a pid alone is given to others after a death."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class ProcessStat:
    """A process as /proc shows it. `state` is a letter (proc(5): T stopped, Z a corpse). `start_ticks` counts from the
    boot, so that it stays what it is when clocks are set. `cpu_us` is the CPU time of its threads."""

    state: str
    start_ticks: int
    cpu_us: int = 0


def process_stat(pid: int) -> ProcessStat | None:
    """Reads what /proc says of `pid`; None when there is no such process. Blocks for no longer than /proc does."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        # The name, in brackets, may have brackets and spaces in it.
        fields = text.rpartition(")")[2].split()
        return ProcessStat(fields[0], int(fields[19]), (int(fields[11]) + int(fields[12])) * TICK_US)
    except (OSError, IndexError, ValueError):
        return None
