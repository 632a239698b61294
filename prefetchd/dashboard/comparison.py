"""Puts two reports side by side, in one document that the same page shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefetchd.dashboard.report import mean
from prefetchd.wire.errors import CallerError

UNKNOWN = "not known"


def comparison(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Return the document of both. Streams of the same name are compared; where each report has one stream, these two
    are. Raises CallerError when a document is no report."""
    for found, name in zip((first, second), names):
        if not isinstance(found, Mapping) or not isinstance(found.get("details"), Mapping) or "report" not in found:
            raise CallerError(f"{name} is no report: `prefetchd report --json` writes one")
    marks = ("A", "B")
    pairs = [(name, name) for name in first["details"] if name in second["details"]]
    if not pairs and len(first["details"]) == len(second["details"]) == 1:
        pairs = [(next(iter(first["details"])), next(iter(second["details"])))]
    rows: list[list[str]] = []
    for one, other in pairs:
        rows += _rows(one, first["details"][one], second["details"][other])
    versions = [each["report"]["versions"] for each in (first, second)]
    for what in sorted({*versions[0], *versions[1]}):
        values = [str(each.get(what, "")) for each in versions]
        if values[0] != values[1]:
            rows.append(["", what, *values])
    both = list(zip(marks, (first, second)))
    return {
        **second,
        "headline": {
            "colour": "unknown",
            "word": "Two runs side by side",
            "text": f"A is {names[0]}, and B is {names[1]}",
        },
        "problems": [],
        "streams": [{**each, "name": f"{mark}: {each['name']}"} for mark, found in both for each in found["streams"]],
        "ended": [f"{mark}: {name}" for mark, found in both for name in found["ended"]],
        "details": {f"{mark}: {name}": each for mark, found in both for name, each in found["details"].items()},
        "first": f"B: {pairs[0][1]}" if pairs else "",
        "processes": [],
        "compare": {"names": list(names), "rows": rows},
    }


def _rows(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[str]]:
    both = (first, second)

    def row(what: str, values: list[str]) -> list[str]:
        return [name, what, *values]

    def means(column: str, text: str) -> list[str]:
        found = [mean(each["history"], column) for each in both]
        return [UNKNOWN if value is None else format(value, text) for value in found]

    def of(value: Any) -> list[str]:
        return [str(value(each["status"])) for each in both]

    return [
        row("answer, last minute", of(lambda each: each["verdict"]["answer"] or UNKNOWN)),
        row("limit", of(lambda each: each["verdict"]["limit"])),
        row("mean share of time waited", means("stalled", ".1%")),
        row("mean batches used a second", means("used", ".2f")),
        row("mean batches made a second", means("made", ".2f")),
        row("mean ring ready", means("ready", ".0%")),
        row("mean workers", means("workers", ".1f")),
        row("batches used in all", of(lambda each: each["consumed_batches"])),
        row("waited in all", of(lambda each: f"{each['stalled_s']:.1f} s")),
        row("batch size", of(lambda each: each["batch_size"])),
        row("same data (fingerprint)", of(lambda each: each["fingerprint"][:8])),
        row("slowest sample", of(_slowest)),
    ]


def _slowest(stream: Mapping[str, Any]) -> str:
    found = stream.get("slowest_samples")
    return f"{found[0]['lasted_s']:.2f} s, index {found[0]['index']}" if found else UNKNOWN
