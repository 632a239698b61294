"""Freezes what is known of a daemon's streams: one document, and one file that shows it. Pure.

A report has what `prefetchd status` shows, an hour of points, versions, options and findings of the doctor. Environment
variables are in none of these, and secrets of the configuration (its `env`) are not either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from prefetchd.dashboard.document import brief, document
from prefetchd.dashboard.page import frozen_page
from prefetchd.dashboard.series import Series
from prefetchd.diagnosis.headline import WORDS

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
    details = {
        name: {
            "status": living.get(name) or gone[name],
            "ended": name not in living,
            "history": points[name].rows() if name in points else [],
            "lanes": [],
        }
        for name in names
    }
    shown = {**status, "streams": [living[name] for name in names if name in living]} if "streams" in status else status
    found = document(
        shown, details, socket=socket, made_unix_s=made_unix_s, ended=[name for name in names if name in gone]
    )
    if not found["streams"] and details:
        last = next(iter(details.values()))["status"]
        found["headline"] = {**_of(last), "text": last["verdict"]["answer"] or last["verdict"]["text"]}
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


def _of(stream: Mapping[str, Any]) -> dict[str, str]:
    colour = brief(stream)["colour"]
    return {"colour": colour, "word": WORDS[colour]}


def _waits_most(details: Mapping[str, Mapping[str, Any]]) -> str:
    def share(name: str) -> float:
        return details[name]["status"]["verdict"]["stalled_share"] or 0.0

    return max(details, key=share, default="")


def mean(rows: Iterable[list[Any]], column: int) -> float | None:
    """Return the mean of a column over time; None where nothing of it is known."""
    known = [row[column] for row in rows if row[column] is not None]
    return sum(known) / len(known) if known else None
