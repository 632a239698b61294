"""How far streams are filled: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from prefetchd.cli import fill_progress
from prefetchd.cli.fill_progress import Filling, FillProgress, bar


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(fill_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def lines(clock, capsys, fillings, step_s=0.125):
    with FillProgress() as progress:
        for filling in fillings:
            clock[0] += step_s
            progress.show(filling)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("filling", "line"),
    [
        (Filling("a", 6, 12), "filling a [============            ] 6/12 batches  3 s"),
        (Filling("a", 13, 12), "filling a [========================] 13/12 batches  3 s"),
        (
            Filling("b", 0, 0, "its dataset is looked at", 2, 3),
            "filling b (2 of 3) [                        ] 0 batches  its dataset is looked at  3 s",
        ),
    ],
)
def test_a_bar_is_as_full_as_the_stream(filling, line):
    assert bar(filling, 3.2) == line


def test_it_says_in_words_what_it_waits_for():
    assert str(Filling("a", 6, 12)) == "stream 'a' has 6 of 12 batches ready"
    assert (
        str(Filling("a", 0, 0, "its first batch is made")) == "stream 'a' has 0 batches ready: its first batch is made"
    )


def test_what_is_soon_done_is_not_shown(clock, capsys, monkeypatch):
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert lines(clock, capsys, [Filling("a", 1, 2)] * 7) == ""


def test_on_a_terminal_a_bar_is_drawn_and_gone_in_the_end(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = lines(clock, capsys, [Filling("a", count, 40) for count in range(40)])
    assert said.count("filling a") == 17, "every second time within four seconds, after the first"
    assert said.endswith("\r\x1b[K")
    assert "\n" not in said


def test_without_a_terminal_a_line_is_written_now_and_then(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    said = lines(clock, capsys, [Filling("a", count // 8, 40) for count in range(200)] + [Filling("b", 0, 9)])
    assert said.splitlines() == [
        "stream 'a' has 0 of 40 batches ready (1 s)",
        "stream 'a' has 10 of 40 batches ready (11 s)",
        "stream 'a' has 20 of 40 batches ready (21 s)",
        "stream 'b' has 0 of 9 batches ready (25 s)",
    ]
    assert "\x1b" not in lines(clock, capsys, [Filling("a\x1b[2J", 0, 1)] * 20)
