"""Reading the status segment. Pure but for the reading: it asks no daemon, so it works when the daemon does not."""

from __future__ import annotations

import dataclasses
import mmap
import os
import time
from typing import Any

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.own_segments import open_status
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.status_layout import HEAD, MAGIC, STATUS_BYTES, decode_head, decode_snapshot

HANGING_AFTER_S = 3.0
AGAIN_S = 0.005
_ATTEMPTS = 200


@dataclasses.dataclass(frozen=True)
class Report:
    """What the status segment told, and how fresh it is. `state`: "running", "hanging", "dead" or "absent"."""

    state: str
    heartbeat_age_s: float | None = None
    snapshot: dict[str, Any] | None = None


def read_report(paths: RuntimePaths) -> Report:
    """The daemon's last word. Waits up to a second for one that is just starting. Raises ProtocolError when the segment
    is of another version, or still says nothing."""
    for _ in range(_ATTEMPTS):
        report = _read(paths)
        if report is not None:
            return report
        time.sleep(AGAIN_S)
    raise ProtocolError("the daemon is starting, and has yet to say anything of itself: ask again")


def _read(paths: RuntimePaths) -> Report | None:
    """None while the segment is being made, or is written faster than it can be read."""
    try:
        fd = open_status(paths)
    except FileNotFoundError:
        return Report("absent")
    try:
        # It has its name before its size, and its size before its head.
        if os.fstat(fd).st_size < STATUS_BYTES:
            return None
        with mmap.mmap(fd, STATUS_BYTES, prot=mmap.PROT_READ) as memory:
            return _report(memory) if memory[: len(MAGIC)].strip(b"\0") else None
    finally:
        os.close(fd)


def _report(memory: mmap.mmap) -> Report | None:
    head = decode_head(memory[: HEAD.size])
    found = decode_snapshot(memory, head.current)
    if found is None:
        return None
    age_s = max(0.0, (time.monotonic_ns() - head.heartbeat_ns) / 1e9)
    return Report(_state(head.pid, found, age_s), age_s, found)


def _state(pid: int, found: dict[str, Any], age_s: float) -> str:
    if not _lives(pid, int(found["daemon"]["start_ticks"])):
        return "dead"
    return "running" if age_s < HANGING_AFTER_S else "hanging"


def _lives(pid: int, start_ticks: int) -> bool:
    """True when `pid` is the daemon that started then: not its corpse, and not another process with its number."""
    found = process_stat(pid)
    return found is not None and found.state != "Z" and found.start_ticks == start_ticks
