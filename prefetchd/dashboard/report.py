"""Freezes what is known of a daemon's streams: one document, and one file that shows it. Pure.

A report has what `prefetchd status` shows, an hour of points, versions, options and findings of the doctor. Environment
variables are in none of these, and secrets of the configuration (its `env`) are not either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from prefetchd.dashboard.document import document
from prefetchd.dashboard.page import frozen_page
from prefetchd.dashboard.series import Series
from prefetchd.diagnosis.answer import answer_of_a_run
from prefetchd.diagnosis.headline import WORDS, colour_of_share
from prefetchd.status.points import COLUMNS

MOST_BYTES = 2_000_000
_PATH = re.compile(r"(?<![\w.:/<])/(?:[^\s/'\",:;()]+/)+(?=[^\s/'\",:;()])")


def report(
    status: Mapping[str, Any],
    points: Mapping[str, Series],
    ended: Mapping[str, Mapping[str, Any]],
    *,
    stream: str,
    socket: str,
    made_unix_s: float,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the document of the stream of that name, or of all streams when it is empty. `about` has `versions` and
    `findings`. Raises KeyError when there is no such stream."""
    living = {each["name"]: each for each in status.get("streams", [])}
    gone = {name: each for name, each in ended.items() if name not in living}
    if stream and stream not in living and stream not in gone:
        raise KeyError(stream)
    names = [stream] if stream else [*living, *gone]
    details: dict[str, dict[str, Any]] = {
        name: {
            "status": living.get(name) or gone[name],
            "ended": name not in living,
            "history": points[name].rows() if name in points else [],
            "lanes": [],
        }
        for name in names
    }
    shown: Mapping[str, Any] = (
        {**status, "streams": [living[name] for name in names if name in living]} if "streams" in status else status
    )
    found = document(
        shown, details, socket=socket, made_unix_s=made_unix_s, ended=[name for name in names if name in gone]
    )
    if not found["problems"] and found["state"] != "hanging":
        found["headline"] = _of_the_run(details) or found["headline"]
    found["first"] = _waits_most(details)
    found["report"] = {**about, "options": {**(status.get("daemon") or {}).get("options", {})}}
    return found


def shortened(found: Any) -> Any:
    """Return the document with each path cut to its last part."""
    if isinstance(found, str):
        return _PATH.sub("", found)
    if isinstance(found, Mapping):
        return {shortened(key): shortened(value) for key, value in found.items()}
    return [shortened(each) for each in found] if isinstance(found, list | tuple) else found


def report_page(found: dict[str, Any], title: str) -> str:
    """Return the document as one file of at most MOST_BYTES: points are thinned out until it fits."""
    page = frozen_page(found, title)
    while len(page.encode()) > MOST_BYTES and any(len(each["history"]) > 2 for each in found["details"].values()):
        thin = {name: {**each, "history": each["history"][::-2][::-1]} for name, each in found["details"].items()}
        found = {**found, "details": thin}
        page = frozen_page(found, title)
    return page


def _of_the_run(details: Mapping[str, Mapping[str, Any]]) -> dict[str, str] | None:
    """Return the headline of runs of which none goes on; None while one does, or where nothing was measured."""
    if any(each["status"]["verdict"]["stalled_share"] is not None and not each["ended"] for each in details.values()):
        return None
    shares = {name: mean(each["history"], "stalled") for name, each in details.items()}
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return None
    worst = max(known, key=lambda name: known[name])
    times = [row[0] for row in details[worst]["history"] if row[COLUMNS.index("stalled")] is not None]
    colour = colour_of_share(known[worst])
    of = f" (stream {worst})" if len(details) > 1 else ""
    return {"colour": colour, "word": WORDS[colour], "text": answer_of_a_run(known[worst], times[-1] - times[0]) + of}


def _waits_most(details: Mapping[str, Mapping[str, Any]]) -> str:
    def share(name: str) -> float:
        return details[name]["status"]["verdict"]["stalled_share"] or 0.0

    return max(details, key=share, default="")


def mean(history: Iterable[list[Any]], column: str) -> float | None:
    """Return the mean of a column over the points at which a trainer was measured; None where there is none."""
    stalled, wanted = COLUMNS.index("stalled"), COLUMNS.index(column)
    known = [row[wanted] for row in history if row[stalled] is not None and row[wanted] is not None]
    return sum(known) / len(known) if known else None
