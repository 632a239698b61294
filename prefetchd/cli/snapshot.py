"""Reading the status segment. Pure but for the reading: it asks no daemon, so it works when the daemon does not."""

from __future__ import annotations

import dataclasses
import mmap
import os
import time
from typing import Any

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.status_layout import STATUS_BYTES, decode_head, decode_snapshot

HANGING_AFTER_S = 3.0
_ATTEMPTS = 20


@dataclasses.dataclass(frozen=True)
class Report:
    """What the status segment told, and how fresh it is. `state`: "running", "hanging", "dead" or "absent"."""

    state: str
    heartbeat_age_s: float | None = None
    snapshot: dict[str, Any] | None = None


def read_report(paths: RuntimePaths) -> Report:
    """The daemon's last word. Raises ProtocolError when the segment is of another version."""
    try:
        fd = os.open("/dev/shm" + paths.status_segment, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Report("absent")
    try:
        if os.fstat(fd).st_size < STATUS_BYTES:
            raise ProtocolError("the status segment is too short")
        with mmap.mmap(fd, STATUS_BYTES, prot=mmap.PROT_READ) as memory:
            return _report(memory)
    finally:
        os.close(fd)


def _report(memory: mmap.mmap) -> Report:
    for _ in range(_ATTEMPTS):
        view = memoryview(memory)
        try:
            head = decode_head(view[:64])
            found = decode_snapshot(view, head.current)
        finally:
            view.release()
        if found is not None:
            age_s = max(0.0, (time.monotonic_ns() - head.heartbeat_ns) / 1e9)
            return Report(_state(head.pid, age_s), age_s, found)
    raise ProtocolError("the status segment holds no whole snapshot")


def _state(pid: int, age_s: float) -> str:
    if age_s < HANGING_AFTER_S:
        return "running"
    return "hanging" if os.path.exists(f"/proc/{pid}") else "dead"
