"""Builds what `prefetchd status` shows: the snapshot, and what can be said of it. Pure; this is what --json prints."""

from __future__ import annotations

import dataclasses
from typing import Any

from prefetchd.cli.health import health
from prefetchd.cli.snapshot import Report
from prefetchd.cli.verdict import judge


def told(report: Report) -> dict[str, Any]:
    """Returns the object that docs/status.md describes."""
    state, problems = health(report)
    head = {"state": report.state, "health": state, "heartbeat_age_s": report.heartbeat_age_s, "problems": problems}
    if report.snapshot is None:
        return head
    found = report.snapshot
    busy_by_stream = [_mean_busy(stream) for stream in found["streams"]]
    streams = [
        {
            **stream,
            "runway_s": _runway_s(stream),
            "verdict": dataclasses.asdict(judge(stream, found["workers"], sum(busy_by_stream) - busy)),
        }
        for stream, busy in zip(found["streams"], busy_by_stream)
    ]
    return {**head, **found, "streams": streams}


def _mean_busy(stream: dict[str, Any]) -> float:
    """Returns how many workers the stream kept busy in the last minute, on average."""
    recent = stream["recent"]
    return max(0.0, recent["fill_s"]) / recent["over_s"] if recent else 0.0


def _runway_s(stream: dict[str, Any]) -> float | None:
    """Returns for how long the trainer can go on with what is ready, at its own pace; None when it has none."""
    recent, ring = stream["recent"], stream["ring"]
    if not recent or ring is None or not recent["consumed_batches_per_s"]:
        return None
    working_s = max(recent["consumer_s"] - recent["stalled_s"], 0.01 * recent["over_s"])
    pace: float = recent["consumed_batches_per_s"] * recent["over_s"] / working_s
    ready: float = ring["ready"] / max(1.0, ring["slots_a_batch"])
    return ready / pace
