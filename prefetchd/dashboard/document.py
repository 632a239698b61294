"""Builds the document that the page draws, from the status and what was seen of streams before. Pure.

Live and frozen pages draw the same document. Live, `details` has the stream that is looked at; frozen, it has all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefetchd import __version__
from prefetchd.diagnosis.headline import colour_of, headline
from prefetchd.status.points import COLUMNS

DOCUMENT_VERSION = 1


def document(
    status: Mapping[str, Any],
    details: Mapping[str, Mapping[str, Any]],
    *,
    socket: str,
    made_unix_s: float,
    error: str = "",
    processes: list[dict[str, Any]] | None = None,
    ended: list[str] | None = None,
) -> dict[str, Any]:
    """Return the document. `status` is what `prefetchd status --json` shows; `error` says why it cannot be read."""
    said = headline(status, socket)
    if error:
        said = {"colour": "unknown", "word": "Not known", "text": error}
    return {
        "document_version": DOCUMENT_VERSION,
        "software": __version__,
        "made_unix_s": made_unix_s,
        "socket": socket,
        "error": error,
        "headline": said,
        "state": status["state"],
        "health": status["health"],
        "heartbeat_age_s": status["heartbeat_age_s"],
        "problems": status["problems"],
        "daemon": status.get("daemon"),
        "workers": status.get("workers"),
        "load": status.get("load"),
        "streams": [brief(each) for each in status.get("streams", [])],
        "streams_left_out": status.get("streams_left_out", 0),
        "ended": ended or [],
        "columns": COLUMNS,
        "details": details,
        "processes": processes or [],
    }


def brief(stream: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the list of streams shows of one."""
    recent, ring, verdict = stream["recent"] or {}, stream["ring"], stream["verdict"]
    return {
        "name": stream["name"],
        "stage": stream["stage"],
        "colour": "bad" if stream["failure"] is not None else colour_of(verdict),
        "limit": verdict["limit"],
        "stalled_share": verdict["stalled_share"],
        "perfect_speedup": verdict["perfect_speedup"],
        "ready_share": ring["ready"] / max(1, ring["slots"]) if ring else None,
        "made_per_s": recent.get("produced_batches_per_s"),
        "used_per_s": recent.get("consumed_batches_per_s"),
        "runway_s": stream["runway_s"],
        "memory_bytes": ring["segment_bytes"] if ring else 0,
    }
