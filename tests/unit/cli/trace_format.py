"""What the Trace Event Format asks of a file; Perfetto and chrome://tracing drop what does not hold to it."""

from __future__ import annotations

import json
from typing import Any


def check_trace(text: str) -> list[dict[str, Any]]:
    """The events that take time, each track in order. Fails where the file breaks the format."""
    found = json.loads(text)
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    processes: set[int] = set()
    last: dict[tuple[int, int], int] = {}
    complete = []
    for event in found["traceEvents"]:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        track = (event["pid"], event["tid"])
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
            processes.add(event["pid"]) if event["name"] == "process_name" else named.add(track)
            continue
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
            assert type(event["ts"]) is int
            assert event["ts"] >= 0
            assert isinstance(event["name"], str)
            assert track in named
            assert event["pid"] in processes
            continue
        assert event["ph"] == "X"
        assert type(event["ts"]) is int
        assert event["ts"] >= 0
        assert type(event["dur"]) is int
        assert event["dur"] >= 0
        assert isinstance(event["name"], str)
        # Those of one track must be one after another, or within one another.
        assert event["ts"] >= last.get(track, 0)
        last[track] = event["ts"] + event["dur"]
        assert track in named
        assert event["pid"] in processes
        complete.append(event)
    return complete
