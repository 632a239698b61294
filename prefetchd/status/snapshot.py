"""Reads the status segment. Pure but for the reading: it asks no daemon, so it works when the daemon does not."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.own_segments import open_status
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.status_layout import (
    COPY_BYTES,
    HEAD,
    MAGIC,
    STATUS_BYTES,
    StatusHead,
    copy_offset,
    decode_copy,
    decode_head,
)

HANGING_AFTER_S = 3.0
AGAIN_S = 0.005
_ATTEMPTS = 200


@dataclasses.dataclass(frozen=True)
class Report:
    """The status segment's content, and how fresh it is. `state`: "running", "hanging", "dead" or "absent"."""

    state: str
    heartbeat_age_s: float | None = None
    snapshot: dict[str, Any] | None = None


def read_report(paths: RuntimePaths) -> Report:
    """Reads the daemon's last word. Waits up to a second for one that is just starting. Raises ProtocolError when the
    segment is of another version, or still says nothing."""
    for _ in range(_ATTEMPTS):
        report = read_once(paths)
        if report is not None:
            return report
        time.sleep(AGAIN_S)
    raise ProtocolError("the daemon is starting, and has yet to say anything of itself: ask again")


def read_once(paths: RuntimePaths) -> Report | None:
    """Reads once, without waiting; None while the segment is being made, or is written faster than it can be read."""
    try:
        fd = open_status(paths)
    except FileNotFoundError:
        return Report("absent")
    try:
        # It has its name before its size, and its size before its head. Read, and not mapped: it may get shorter.
        head = os.pread(fd, HEAD.size, 0)
        if os.fstat(fd).st_size < STATUS_BYTES or not head[: len(MAGIC)].strip(b"\0"):
            return None
        return _report(fd, decode_head(head))
    finally:
        os.close(fd)


def _report(fd: int, head: StatusHead) -> Report | None:
    found = decode_copy(os.pread(fd, COPY_BYTES, copy_offset(head.current)))
    if found is None:
        return None
    age_s = max(0.0, (time.monotonic_ns() - head.heartbeat_ns) / 1e9)
    return Report(_state(head.pid, found, age_s), age_s, found)


def _state(pid: int, found: dict[str, Any], age_s: float) -> str:
    about = found.get("daemon")
    start_ticks = about.get("start_ticks") if isinstance(about, dict) else None
    if type(start_ticks) is not int:
        raise ProtocolError("a status segment that does not say which daemon's it is")
    if not _lives(pid, start_ticks):
        return "dead"
    return "running" if age_s < HANGING_AFTER_S else "hanging"


def _lives(pid: int, start_ticks: int) -> bool:
    """Returns True when `pid` is the daemon that started then: not its corpse, and not another process with its
    number."""
    found = process_stat(pid)
    return found is not None and found.state != "Z" and found.start_ticks == start_ticks
