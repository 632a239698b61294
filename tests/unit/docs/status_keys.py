"""The keys of `prefetchd status --json` as docs/status.md has them, and the JSON schema that says the same.

`python -m tests.unit.docs.status_keys` writes docs/status.schema.json.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[3] / "docs"
SCHEMA = DOCS / "status.schema.json"

# What stands before the keys of the table that follows this line.
PREFIXES = {
    "One element of `declared`:": "declared[].",
    "One element of `streams`:": "streams[].",
    "`ring`:": "streams[].",
    "`recent`:": "streams[].",
    "One element of `paces`:": "streams[].paces[].",
    "One element of `slowest_samples`:": "streams[].slowest_samples[].",
    "One element of `tuning`:": "streams[].tuning[].",
    "`verdict`:": "streams[].",
    "One element of `consumers`.": "streams[].consumers[].",
    "One element of a stream's `workers`:": "streams[].workers[].",
    "`remote`:": "streams[].",
    "One element of `remote.nodes`:": "streams[].remote.nodes[].",
}
TYPES = {
    "int": "integer",
    "float": "number",
    "str": "string",
    "bool": "boolean",
    "list": "array",
    "object": "object",
    "null": "null",
}
ALWAYS = ("state", "health", "heartbeat_age_s", "problems")
# Missing as long as there is no ring, as everything is there, or as nothing was tuned (scenario/test_autotune.py).
SOMETIMES = re.compile(
    r"streams\[\]\.consumers\[\]\.(?!pid|departed)|streams\[\]\.workers\[\]\.pss_bytes|streams\[\]\.tuning\[\]\.|streams\[\]\.slowest_samples\[\]\.|streams\[\]\.remote\."
)
OF_NUMBERS = ("ready_percents",)


def documented_keys() -> dict[str, str]:
    """Path to type of every key in the tables."""
    found: dict[str, str] = {}
    prefix = ""
    for line in (DOCS / "status.md").read_text("utf-8").split("\n## The verdict")[0].splitlines():
        prefix = next((after for begin, after in PREFIXES.items() if line.startswith(begin)), prefix)
        row = re.match(r"\| `([\w.]+)` \| ([\w ]+) \|", line)
        if row:
            assert prefix + row[1] not in found
            found[prefix + row[1]] = row[2]
    return found


def schema() -> dict[str, Any]:
    """What the tables say, as a JSON schema (draft 2020-12). Further keys are allowed."""
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "prefetchd status --json, snapshot_version 1",
        **_object("object"),
    }
    for path, kinds in documented_keys().items():
        *above, name = path.split(".")
        at = root
        for each in above:
            at = _step(at, each)
        at["properties"][name] = _node(kinds, name)
        if at is root and name not in ALWAYS:
            continue
        if not SOMETIMES.match(path):
            at["required"].append(name)
    return root


def _node(kinds: str, name: str) -> dict[str, Any]:
    if "object" in kinds:
        return _object(kinds)
    if kinds == "list":
        number = {"type": "integer"} if name in OF_NUMBERS else {"type": "string"}
        return {"type": "array", "items": number}
    return {"type": _types(kinds)}


def _object(kinds: str) -> dict[str, Any]:
    return {"type": _types(kinds), "required": [], "properties": {}}


def _types(kinds: str) -> str | list[str]:
    found = [TYPES[kind] for kind in kinds.split(" or ")]
    return found[0] if len(found) == 1 else found


def _step(at: dict[str, Any], name: str) -> dict[str, Any]:
    """The object below `at` that `name` leads to, made if it is not there yet."""
    if name.endswith("[]"):
        items: dict[str, Any] = at["properties"].setdefault(name[:-2], {"type": "array", "items": {}})
        if "properties" not in items["items"]:
            items["items"] = _object("object")
        found: dict[str, Any] = items["items"]
        return found
    below: dict[str, Any] = at["properties"].setdefault(name, _object("object"))
    return below


def text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text(), "utf-8")
