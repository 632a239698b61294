"""Decides whether a daemon is well, and what is not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEALTHY, DEGRADED, ABSENT = "healthy", "degraded", "absent"
SHARED_MEMORY = "/dev/shm"
_NOT_WELL = {"hanging": "the daemon hangs", "dead": "the daemon is dead"}
EXIT_CODES = {HEALTHY: 0, DEGRADED: 3, ABSENT: 4}


def health(state: str, heartbeat_age_s: float | None, snapshot: Mapping[str, Any] | None) -> tuple[str, list[str]]:
    """Returns HEALTHY, DEGRADED with the reasons, or ABSENT. `state` is what the reader of the snapshot says of the
    daemon ("running", "hanging" or "dead"); without a snapshot it is absent. What only is slow is healthy."""
    if snapshot is None:
        return ABSENT, []
    found = problems(snapshot)
    if state in _NOT_WELL:
        found.insert(0, f"{_NOT_WELL[state]}: its last sign of life is {duration(heartbeat_age_s or 0.0)} old")
    return (DEGRADED if found else HEALTHY), found


def problems(snapshot: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with a daemon that runs, in sentences for people."""
    found = []
    workers = snapshot["workers"]
    if workers["limit"] != workers["asked"]:
        of = f" of {workers['asked']}" if workers["asked"] else ""
        found.append(f"workers were killed for memory: {workers['limit']}{of} may be busy at once since")
    # Of the streams only what an operator must act upon: a slow one is what the verdict is about.
    for stream in snapshot["streams"]:
        found += _of_stream(stream)
    begun = {stream["name"] for stream in snapshot["streams"]}
    for declared in snapshot.get("declared", []):
        if declared["failure"] and declared["name"] not in begun:
            found.append(f"declared stream {declared['name']} has failed: {declared['failure']}")
    return found


def _of_stream(stream: Mapping[str, Any]) -> list[str]:
    found = []
    if stream["failure"] is not None:
        found.append(f"stream {stream['name']} has failed")
    if stream["ring"] is None and stream["failed_batches"]:
        found.append(f"the first batch of {stream['name']} cannot be made: a trainer is told why, or the log")
    if stream.get("store_fault"):
        found.append(f"batches of {stream['name']} cannot be stored: {stream['store_fault']}")
    ring = stream["ring"]
    if ring is not None and ring["name_removed"]:
        directory = ring.get("directory", SHARED_MEMORY)
        logout = (
            ". A logout does that (RemoveIPC): `loginctl enable-linger`, or a system unit, prevents it"
            if directory == SHARED_MEMORY
            else ""
        )
        found.append(
            f"{ring['segment']} was removed from {directory}: the run goes on, but the ring of {stream['name']} "
            f"ends with the daemon{logout}"
        )
    return found


def duration(seconds: float) -> str:
    """Formats a duration for people, as in "1 h 05 min"."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
