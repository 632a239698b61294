"""Keeps the last minute of worker tasks and trainer waits, as bars in lanes. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from prefetchd.wire.messages import TRACED_REMOTE, TRACED_WAIT, TraceEvents

SPAN_S = 60.0
MOST_BARS = 3000
"""Bars to keep of each stream: the latest ones."""

Bar = tuple[str, str, float, float, int, int]
"""(kind, lane, begin on the monotonic clock, seconds, epoch, step)."""


class Lanes:
    """Keeps the bars of all streams."""

    def __init__(self) -> None:
        self._bars: dict[str, deque[Bar]] = {}
        self._names: dict[int, str] = {}

    def add(self, events: TraceEvents) -> None:
        """Add what a trace has brought."""
        for number, text in zip(events.streams, events.names):
            self._names[number] = text.decode("utf-8", "replace")
        for row in events.events:
            if len(row) != 10:
                continue
            kind, stream, who, epoch, step, _, _, _, began_us, duration_us = row
            name = self._names.get(stream, str(stream))
            bar = (*_lane(kind, who), began_us / 1e6, duration_us / 1e6, epoch, step)
            self._bars.setdefault(name, deque(maxlen=MOST_BARS)).append(bar)

    def of(self, stream: str, now_s: float) -> list[list[Any]]:
        """Return the stream's bars of the last minute as [kind, lane, seconds ago at its begin, seconds, label]."""
        bars = self._bars.get(stream, ())
        return [
            [kind, lane, round(now_s - began_s, 3), round(lasted_s, 4), f"{epoch}:{step}"]
            for kind, lane, began_s, lasted_s, epoch, step in bars
            if now_s - began_s - lasted_s < SPAN_S
        ]

    def forget(self, keep: set[str]) -> None:
        """Forget streams that are not in `keep`."""
        for name in [name for name in self._bars if name not in keep]:
            del self._bars[name]


def _lane(kind: int, who: int) -> tuple[str, str]:
    if kind == TRACED_WAIT:
        return "wait", f"trainer {who}"
    return ("task", f"remote {who}") if kind == TRACED_REMOTE else ("task", f"worker {who}")
