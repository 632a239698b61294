"""Decides whether a daemon is well, and what is not. Pure."""

from __future__ import annotations

from prefetchd.cli.snapshot import Report

HEALTHY, DEGRADED, ABSENT = "healthy", "degraded", "absent"
SHARED_MEMORY = "/dev/shm"
EXIT_CODES = {HEALTHY: 0, DEGRADED: 3, ABSENT: 4}


def health(report: Report) -> tuple[str, list[str]]:
    """Returns HEALTHY, DEGRADED with the reasons, or ABSENT. What only is slow is healthy."""
    if report.snapshot is None:
        return ABSENT, []
    problems = []
    if report.state == "hanging":
        problems.append(f"the daemon hangs: its last sign of life is {duration(report.heartbeat_age_s or 0.0)} old")
    elif report.state == "dead":
        problems.append(f"the daemon is dead: its last sign of life is {duration(report.heartbeat_age_s or 0.0)} old")
    workers = report.snapshot["workers"]
    if workers["limit"] != workers["asked"]:
        of = f" of {workers['asked']}" if workers["asked"] else ""
        problems.append(f"workers were killed for memory: {workers['limit']}{of} may be busy at once since")
    # Of the streams only what an operator must act upon: a slow one is what the verdict is about.
    for stream in report.snapshot["streams"]:
        if stream["failure"] is not None:
            problems.append(f"stream {stream['name']} has failed")
        ring = stream["ring"]
        if ring is not None and ring["name_removed"]:
            directory = ring.get("directory", SHARED_MEMORY)
            logout = (
                ". A logout does that (RemoveIPC): `loginctl enable-linger`, or a system unit, prevents it"
                if directory == SHARED_MEMORY
                else ""
            )
            problems.append(
                f"{ring['segment']} was removed from {directory}: the run goes on, but the ring of {stream['name']} "
                f"ends with the daemon{logout}"
            )
    return (DEGRADED if problems else HEALTHY), problems


def duration(seconds: float) -> str:
    """Formats a duration for people, as in "1 h 05 min"."""
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
