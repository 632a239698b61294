"""Reads how much memory a process has for itself."""

from __future__ import annotations

from pathlib import Path


def private_bytes(pid: int) -> int | None:
    """Returns the memory that no other process shares with `pid`: what its end would give back. None when there is no
    such process, or it is somebody else's. The kernel walks through all that it has mapped for this."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    kib = sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))
    return kib << 10
