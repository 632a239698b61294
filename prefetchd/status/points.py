"""Derives from looks at the status what a chart over time shows of each stream: one point a look. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("at_unix_s", "ready", "made", "used", "stalled", "workers", "ring_bytes", "limit")
"""A point's values: when it was taken, the share of the ring's slots that are ready, batches made and used a second,
the share of the trainers' time that they waited, worker processes, bytes of the ring, and the limit that the verdict
names. A rate is None in a stream's first point."""

Point = tuple[float, float, "float | None", "float | None", "float | None", int, int, str]


class StreamPoints:
    """Makes the points of one stream: rates are between two looks."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._made = self._used = 0
        self._waited_s: dict[int, float] = {}

    def point(self, stream: Mapping[str, Any], taken_unix_s: float, up_s: float) -> Point:
        """Return the point of a judged stream, and remember its counts for the next one. `up_s` is a clock that nobody
        sets: the daemon's own."""
        waited_s = {
            each["pid"]: each["waited_s"] + each["waiting_s"]
            for each in stream["consumers"]
            if not each["departed"] and "waited_s" in each
        }
        since_s = up_s - self._at_s if self._at_s is not None else 0.0
        made, used = stream["produced_batches"], stream["consumed_batches"]
        rates: tuple[float | None, float | None, float | None] = (None, None, None)
        # Counts fall when the stream or the daemon began again.
        if since_s > 0 and made >= self._made and used >= self._used:
            shares = [
                min(1.0, max(0.0, now_s - self._waited_s[pid]) / since_s)
                for pid, now_s in waited_s.items()
                if pid in self._waited_s
            ]
            stalled = round(sum(shares) / len(shares), 4) if shares else None
            rates = (round((made - self._made) / since_s, 3), round((used - self._used) / since_s, 3), stalled)
        self._at_s, self._made, self._used, self._waited_s = up_s, made, used, waited_s
        ring = stream["ring"]
        ready = round(ring["ready"] / max(1, ring["slots"]), 4) if ring else 0.0
        ring_bytes = ring["segment_bytes"] if ring else 0
        limit = stream["verdict"]["limit"]
        return (round(taken_unix_s, 2), ready, *rates, len(stream["workers"]), ring_bytes, limit)
