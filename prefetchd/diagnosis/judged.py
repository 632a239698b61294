"""Adds to the streams of a snapshot what follows from it: each one's verdict, and for how long what is ready lasts.
Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from prefetchd.diagnosis.verdict import judge


def judged_streams(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the snapshot's streams, each with `runway_s` and `verdict` as docs/status.md describes them."""
    busy_by_stream = [_busy(stream) for stream in snapshot["streams"]]
    all_busy = sum(busy_by_stream)
    return [
        {
            **stream,
            "runway_s": runway_s(stream),
            "verdict": dataclasses.asdict(judge(stream, snapshot, all_busy - busy)),
        }
        for stream, busy in zip(snapshot["streams"], busy_by_stream)
    ]


def runway_s(stream: Mapping[str, Any]) -> float | None:
    """Returns for how long the trainer can go on with what is ready, at its own pace; None when it has none."""
    recent, ring = stream["recent"], stream["ring"]
    if not recent or ring is None or not recent["consumed_batches_per_s"]:
        return None
    working_s = max(recent["consumer_s"] - recent["stalled_s"], 0.01 * recent["over_s"])
    pace: float = recent["consumed_batches_per_s"] * recent["over_s"] / working_s
    ready: float = ring["ready"] / max(1.0, ring["slots_a_batch"])
    return ready / pace


def _busy(stream: Mapping[str, Any]) -> float:
    """Returns how many workers the stream keeps busy by now, on average over the last seconds: one that has ended does
    not count."""
    recent = stream["recent"]
    return max(0.0, recent["busy_workers"]) if recent else 0.0
