"""The README shows what the tool prints, and the first things first."""

from __future__ import annotations

import json

from prefetchd.status.snapshot import Report
from prefetchd.status.status_object import status_object
from tests.documents.capture import REPORT, screen
from tests.documents.pages import blocks_in, text_of

README = text_of("README.md")
(CAPTURED,) = [block for block in blocks_in("console") if block.page == "README.md"]


def test_the_capture_is_what_status_prints_today():
    assert CAPTURED.text == f"$ prefetchd status\n{screen()}", "run `python -m tests.documents.capture`"


def test_the_capture_is_of_a_trainer_that_does_not_wait():
    found = status_object(Report(**json.loads(REPORT.read_text("utf-8"))))
    (stream,) = found["streams"]
    assert found["health"] == "healthy"
    assert stream["verdict"]["limit"] == "trainer"
    assert stream["recent"]["over_s"] > 30
    assert stream["consumers"][0]["yielded"] > 50


def test_the_loop_comes_before_what_takes_minutes_and_so_does_when_not_to_use_it():
    places = [
        README.index(text) for text in ("PrefetchLoader(dataset", "## When not to use it", "make test", "## How fast")
    ]
    assert places == sorted(places)
