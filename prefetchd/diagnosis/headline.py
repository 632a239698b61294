"""Answers "is it the data?" for all streams at once: one word, one colour, one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefetchd.diagnosis.health import duration
from prefetchd.tuning.worker_tuner import STALLED_SHARE

BAD_SHARE = 0.1
"""From this share of waiting on the answer is red."""
GOOD, FAIR, BAD, UNKNOWN = "good", "fair", "bad", "unknown"
WORDS = {GOOD: "No", FAIR: "A little", BAD: "Yes", UNKNOWN: "Not known"}


def colour_of(verdict: Mapping[str, Any]) -> str:
    """Return GOOD, FAIR, BAD or UNKNOWN for a verdict as in `prefetchd status --json`."""
    return colour_of_share(verdict["stalled_share"])


def colour_of_share(stalled: float | None) -> str:
    """Return the colour for a share of time that a trainer waited, rounded as texts show it."""
    if stalled is None:
        return UNKNOWN
    stalled = round(stalled, 2)
    return GOOD if stalled < STALLED_SHARE else FAIR if stalled < BAD_SHARE else BAD


def headline(status: Mapping[str, Any], socket: str) -> dict[str, str]:
    """Return `colour`, `word` and `text` for what `prefetchd status --json` shows: those of the stream whose trainer
    waits most."""
    if "daemon" not in status:
        return _said(UNKNOWN, f"no daemon runs on {socket}; the first loader starts one, and this page waits for it")
    if status["state"] in ("dead", "hanging"):
        verb = "is dead" if status["state"] == "dead" else "hangs"
        age = duration(status["heartbeat_age_s"] or 0.0)
        return _said(UNKNOWN, f"the daemon {verb}; what follows is what it wrote {age} ago")
    judged = [each for each in status["streams"] if each["verdict"]["stalled_share"] is not None]
    failed = [each["name"] for each in status["streams"] if each["failure"] is not None]
    if failed:
        return _said(BAD, f"stream {failed[0]} has failed, and makes no batches")
    if not judged:
        text = status["streams"][0]["verdict"]["text"] if len(status["streams"]) == 1 else "no trainer is measured yet"
        return _said(UNKNOWN, text if status["streams"] else "no trainer has opened a stream yet")
    worst = max(judged, key=lambda each: each["verdict"]["stalled_share"])
    of = f" (stream {worst['name']})" if len(status["streams"]) > 1 else ""
    return _said(colour_of(worst["verdict"]), worst["verdict"]["answer"] + of)


def _said(colour: str, text: str) -> dict[str, str]:
    return {"colour": colour, "word": WORDS[colour], "text": text}
