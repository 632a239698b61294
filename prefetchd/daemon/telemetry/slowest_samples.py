"""Remembers the slowest samples of each stream, by what workers are seen at several times a second. Pure.

A duration is how long a sample had taken when it was last seen, so it is at most one look too short. A sample that is
shorter than the time between two looks is seen by chance.
"""

from __future__ import annotations

from typing import Any

from prefetchd.wire.worker_status import COLLATING, ITERATING, LOADING, PHASES, WorkerStatus

MOST_KEPT = 8
KEPT_S = 3600.0
"""Seconds to remember a slow sample for."""
_OF_SAMPLES = (LOADING, COLLATING, ITERATING)


class SlowestSamples:
    """Keeps the slowest samples of one stream."""

    def __init__(self) -> None:
        # By worker and by when the sample began, which no two samples share.
        self._kept: dict[tuple[int, int], tuple[float, float, WorkerStatus]] = {}
        self._least_s = 0.0

    def see(self, worker: int, status: WorkerStatus, now_s: float) -> None:
        """Note what a busy worker is at."""
        lasted_s = now_s - status.since_ns / 1e9
        if lasted_s <= self._least_s or status.phase not in _OF_SAMPLES or not status.since_ns:
            return
        self._kept[worker, status.since_ns] = (lasted_s, now_s, status)
        if len(self._kept) > MOST_KEPT:
            shortest = min(self._kept, key=lambda key: self._kept[key][0])
            del self._kept[shortest]
            self._least_s = min(lasted_s for lasted_s, _, _ in self._kept.values())

    def about(self, now_s: float) -> list[dict[str, Any]]:
        """Return the slowest samples of the last hour as docs/status.md describes them, the slowest first."""
        old = [key for key, (_, seen_s, _) in self._kept.items() if now_s - seen_s > KEPT_S]
        for key in old:
            del self._kept[key]
        if old:
            self._least_s = 0.0
        found = [
            {
                "worker": worker,
                "index": status.index,
                "phase": PHASES[status.phase],
                "lasted_s": lasted_s,
                "ago_s": max(0.0, now_s - seen_s),
            }
            for (worker, _), (lasted_s, seen_s, status) in self._kept.items()
        ]
        return sorted(found, key=lambda each: -each["lasted_s"])
