"""One word for all streams, from examples of the status."""

from __future__ import annotations

import pytest

from prefetchd.diagnosis.headline import headline
from prefetchd.status.snapshot import Report
from prefetchd.status.status_object import status_object
from tests.unit.cli.examples import recent, report, stream


def said(*streams, **changes):
    return headline(status_object(report(*streams, **changes)), "/s")


@pytest.mark.parametrize(
    ("stalled_s", "word"),
    [(0.0, "No"), (0.8, "No"), (0.96, "A little"), (3.0, "A little"), (5.76, "Yes"), (22.8, "Yes")],
)
def test_word_follows_the_share_of_waiting(stalled_s, word):
    assert said(stream(recent=recent(stalled_s=stalled_s)))["word"] == word


def test_stream_whose_trainer_waits_most_is_named():
    slow = stream(name="slow", recent=recent(stalled_s=30.0))
    found = said(stream(name="fast", recent=recent(stalled_s=0.0)), slow)
    assert found["text"].endswith("(stream slow)")
    assert "waited 50%" in found["text"]


@pytest.mark.parametrize(("state", "text"), [("dead", "the daemon is dead"), ("hanging", "the daemon hangs")])
def test_daemon_that_does_not_answer_is_named(state, text):
    found = said(stream(), state=state, age_s=9.0)
    assert found["word"] == "Not known"
    assert text in found["text"]
    assert "9.0 s ago" in found["text"]


def test_no_daemon_and_no_stream_are_told_apart():
    assert "no daemon runs on /s" in headline(status_object(Report("absent")), "/s")["text"]
    assert "no trainer has opened a stream yet" in said()["text"]


def test_failed_stream_comes_first():
    assert said(stream(), stream(name="broken", failure="no"))["text"].startswith("stream broken has failed")
