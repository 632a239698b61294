"""A contestant says what it has measured in lines of JSON on its standard output; this module writes and reads them.

Each line is an object with `event`: "ready" (a trainer that waits to be told to go on), "result" (with `measures` and
`versions`), "cannot" or "failed" (with `reason`). Whatever else a package prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

EVENTS = ("ready", "result", "cannot", "failed")
Line = dict[str, Any]


class ProtocolError(Exception):
    """Raised where a contestant ended without having said what became of it."""


def take_standard_output() -> TextIO:
    """Returns a stream to the reader, and sends whatever is printed from here on to standard error."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return ours


def say(stream: TextIO, event: str, **fields: Any) -> None:
    """Writes one line. Raises ValueError for an event that is not known."""
    if event not in EVENTS:
        raise ValueError(f"event {event!r}; there are {', '.join(EVENTS)}")
    stream.write(json.dumps({"event": event, **fields}) + "\n")
    stream.flush()


def parse(line: str) -> Line | None:
    """Returns the object of a line; None for a line that is none of ours."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("event") in EVENTS else None


def last_word(lines: Iterable[str]) -> Line:
    """Returns the last line that says what became of the contestant. Raises ProtocolError when there is none."""
    found = [said for said in map(parse, lines) if said is not None and said["event"] != "ready"]
    if not found:
        raise ProtocolError("it ended without a result")
    return found[-1]
