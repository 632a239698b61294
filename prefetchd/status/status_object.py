"""Builds what `prefetchd status` shows: the snapshot, and what can be said of it. Pure; this is what --json prints."""

from __future__ import annotations

from typing import Any

from prefetchd import __version__
from prefetchd.diagnosis.health import health
from prefetchd.diagnosis.judged import judged_streams
from prefetchd.status.snapshot import Report
from prefetchd.wire.errors import ProtocolError


def status_object(report: Report) -> dict[str, Any]:
    """Returns the object that docs/status.md describes. Raises ProtocolError when the daemon is of a version that says
    less."""
    try:
        state, problems = health(report.state, report.heartbeat_age_s, report.snapshot)
        head = {"state": report.state, "health": state, "heartbeat_age_s": report.heartbeat_age_s, "problems": problems}
        if report.snapshot is None:
            return head
        return {**head, **report.snapshot, "streams": judged_streams(report.snapshot)}
    except KeyError as missing:
        raise ProtocolError(
            f"the daemon does not say {missing}: it is of another version than this command, {__version__}. Use that "
            "one's command, or `prefetchd restart`"
        ) from None
