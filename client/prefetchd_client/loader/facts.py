"""Tells people and loggers how a loader's stream is, by what the daemon publishes. It asks the daemon nothing.

The daemon's status is imported only when it is asked for: most trainers never ask.
"""

from __future__ import annotations

import html
from typing import Any, Protocol

from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.runtime_paths import runtime_paths

COLOURS = {"good": "#00674b", "fair": "#8a5a00", "bad": "#a83c00", "unknown": "#555c66"}
INLINE = "its batches are made in this process"
UNSEEN = "the daemon has not shown it yet"


class Loader(Protocol):
    """The loader, as far as this module knows it: loader.py imports this one."""

    @property
    def socket(self) -> str | None: ...


class Summary(dict[str, Any]):
    """The first screen of a report as a dict, whose str() is its text."""

    def __str__(self) -> str:
        lines = [f"Is it the data? {self['word']}: {self['answer'] or self['verdict']}"]
        if self["answer"] and self["verdict"]:
            lines.append(self["verdict"])
        lines.append(f"{self['stream']}: {_pace(self) or 'not measured yet'}")
        return "\n".join(lines)


def summary_of(loader: Loader) -> Summary:
    """Return the summary of a loader's stream. Raises nothing: what is not known is None, or said in `verdict`."""
    sessions = vars(loader).get("_sessions")
    name = sessions.current.name if sessions is not None else ""
    found = Summary(stream=name, colour="unknown", word="Not known", answer="", verdict=UNSEEN, limit="none")
    found |= dict.fromkeys(
        ("stalled_share", "perfect_speedup", "ready_batches", "ring_batches", "batches_per_s", "made_per_s", "runway_s")
    )
    if sessions is None or sessions.is_inline:
        return Summary(found, verdict=INLINE)
    if not sessions.current.is_named:
        # Another stream may have the name that was asked for.
        return found
    try:
        return Summary(found, **_seen(loader.socket, name))
    except (PrefetchdError, OSError) as error:
        return Summary(found, verdict=str(error))


def _seen(socket: str | None, name: str) -> dict[str, Any]:
    """Return what the status says of the stream. Raises ProtocolError and OSError."""
    from prefetchd.diagnosis.headline import WORDS, colour_of
    from prefetchd.status.snapshot import read_once
    from prefetchd.status.status_object import status_object

    report = read_once(runtime_paths(socket))
    if report is None or report.snapshot is None:
        return {"verdict": "no daemon runs" if report is not None else UNSEEN}
    if report.state != "running":
        return {"verdict": "the daemon hangs" if report.state == "hanging" else "the daemon is dead"}
    stream = next((each for each in status_object(report)["streams"] if each["name"] == name), None)
    if stream is None:
        return {"verdict": UNSEEN}
    verdict, ring, recent = stream["verdict"], stream["ring"], stream["recent"] or {}
    a_batch = max(1.0, ring["slots_a_batch"]) if ring else 1.0
    colour = colour_of(verdict)
    return {
        "colour": colour,
        "word": WORDS[colour],
        "answer": verdict["answer"],
        "verdict": verdict["text"],
        "limit": verdict["limit"],
        "stalled_share": verdict["stalled_share"],
        "perfect_speedup": verdict["perfect_speedup"],
        "ready_batches": int(ring["ready"] / a_batch) if ring else None,
        "ring_batches": int(ring["slots"] / a_batch) if ring else None,
        "batches_per_s": recent.get("consumed_batches_per_s"),
        "made_per_s": recent.get("produced_batches_per_s"),
        "runway_s": stream["runway_s"],
    }


def metrics_of(loader: Loader) -> dict[str, float]:
    """Return what is known of a loader's stream under the names that loggers get."""
    found = summary_of(loader)
    names = ("stalled_share", "ready_batches", "batches_per_s")
    return {f"prefetchd/{name}": float(found[name]) for name in names if found[name] is not None}


def line_of(loader: Loader) -> str:
    """Return the loader's repr(): one line."""
    found = summary_of(loader)
    facts = [repr(found["stream"]), _pace(found), found["limit"] if found["limit"] != "none" else found["verdict"]]
    return f"<{type(loader).__name__} {', '.join(each for each in facts if each)}>"


def card_of(loader: Loader) -> str:
    """Return a small card for notebooks. Names and texts are escaped."""
    found = summary_of(loader)
    colour = COLOURS[found["colour"]]
    name, pace = html.escape(found["stream"]), html.escape(_pace(found))
    text = html.escape(found["answer"] or found["verdict"])
    more = f"<div>{html.escape(found['verdict'])}</div>" if found["answer"] else ""
    return (
        f'<div style="border-left: 6px solid {colour}; padding: 4px 12px; max-width: 60em">'
        f"<b>{html.escape(type(loader).__name__)} {name}</b> "
        f'<span style="opacity: 0.75">{pace}</span>'
        f"<div>Is it the data? <b>{html.escape(found['word'])}</b>: {text}</div>{more}</div>"
    )


def postfix_of(loader: Loader) -> str:
    """Return what a progress bar says behind its numbers; empty as long as nothing is known."""
    found = summary_of(loader)
    waited = f"waited {_percent(found['stalled_share'])}" if found["stalled_share"] is not None else ""
    return ", ".join(each for each in (waited, _ready(found)) if each)


def _pace(found: dict[str, Any]) -> str:
    pace = f"{found['batches_per_s']:.1f} batches/s" if found["batches_per_s"] is not None else ""
    waited = f"waited {_percent(found['stalled_share'])}" if found["stalled_share"] is not None else ""
    return ", ".join(each for each in (_ready(found), pace, waited) if each)


def _ready(found: dict[str, Any]) -> str:
    known = found["ready_batches"] is not None
    return f"ready {found['ready_batches']}/{found['ring_batches']}" if known else ""


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
