"""Defines the history file: what the daemon's streams did in the last hours, one JSON object a line, version 1.

    {"t": 1764322800.0, "points": {NAME: [ready, made, used, stalled, workers, ring_bytes, limit], ...}}
    {"t": 1764322801.5, "ended": {...}}

The first kind is written every 10 s; `points` has a row for each stream (prefetchd.status.points). The second kind is
written when a stream ends: what `prefetchd status --json` showed of it at its last point. The daemon appends lines with
one write. A file at its bound gets the suffix ".1", in the place of the one before, so a reader reads both.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POINTS_EVERY_S = 10.0
READ_AT_MOST_BYTES = 64 << 20


def former(path: Path) -> Path:
    """Return the path of the file before `path`, which has reached its bound."""
    return path.with_name(path.name + ".1")


def line_of(entry: dict[str, Any]) -> bytes:
    """Encode an entry, with its end of line."""
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def read_history(path: Path, since_unix_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """Yield the entries since then, the oldest first. A file that is missing has none, and a line that is cut off or
    damaged is left out."""
    for each in (former(path), path):
        data = b""
        with contextlib.suppress(OSError):
            fd = os.open(each, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                file.seek(max(0, os.fstat(fd).st_size - READ_AT_MOST_BYTES))
                data = file.read(READ_AT_MOST_BYTES)
        for line in data.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("t"), int | float) and entry["t"] >= since_unix_s:
                    yield entry
