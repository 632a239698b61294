"""docs/troubleshooting.md has every error, and all that the daemon warns of; and nothing that is not there."""

from __future__ import annotations

import ast
import re

import prefetchd_client.errors

from prefetchd.wire.errors import ERRORS_BY_CODE
from tests.unit.docs.draw import DOCS, ROOT
from tests.unit.docs.variables_read import text_of

TEXT = (DOCS / "troubleshooting.md").read_text("utf-8")
QUIET = {"info", "debug"}
WARNS = {f"log.{level}" for level in ("warning", "error", "exception", "critical")}
AT_A_LEVEL = {"Log.line", "self._log"}
"""Called with a level and an event."""


def section(heading: str) -> str:
    return TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def warned_events() -> set[str]:
    """The events that the daemon logs as a warning or worse."""
    found = set()
    for path in (ROOT / "prefetchd").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        for call in calls:
            function = ast.unparse(call.func)
            if function in WARNS or (function in AT_A_LEVEL and text_of(call.args[0]) not in QUIET):
                event = text_of(call.args[function in AT_A_LEVEL])
                assert event, f"{path}:{call.lineno}: an event is a name"
                found.add(event)
    return found


def test_every_error_is_there_and_no_other():
    told = re.findall(r"^\| `(\w+)`", section("Errors"), re.M)
    assert sorted(told) == sorted(error.__name__ for error in ERRORS_BY_CODE.values())


def test_every_error_can_be_caught_by_the_client_s_name():
    for error in ERRORS_BY_CODE.values():
        assert error.__name__ in prefetchd_client.errors.__all__
        assert getattr(prefetchd_client.errors, error.__name__) is error


def test_every_event_that_the_daemon_warns_of_is_there_and_no_other():
    told = re.findall(r"^\| `(.*?)` \|", section("What the daemon logs"), re.M)
    assert sorted(told) == sorted(warned_events())


def test_what_the_status_says_is_said_by_the_code():
    code = "".join(path.read_text("utf-8") for path in (ROOT / "prefetchd" / "diagnosis").glob("*.py"))
    for said in re.findall(r"^\| ([a-z.].*?) \|", section("What the status says under `!`"), re.M):
        if said != "it says":
            assert all(part.strip() in code.replace("{directory}", "/dev/shm") for part in said.split("...")), said
