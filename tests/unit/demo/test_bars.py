"""The demo's bars."""

from __future__ import annotations

import io

import pytest
from prefetchd_demo.bars import BarGroup, bar_chart
from rich.console import Console

GROUPS = [
    BarGroup("Stalled", {"one": 12.34, "another": 6.17, "third": 0.001}),
    BarGroup("First batch", {"one": 0.5, "another": 0.25, "third": 0.0}),
]
STYLES = {"one": "yellow", "another": "green"}

WIDE = """\
Stalled
  one      ████████████████████ 12.3 s
  another  ██████████ 6.17 s
  third    ▏ 1 ms

First batch
  one      ████████████████████ 500 ms
  another  ██████████ 250 ms
  third    ▏ 0 ms"""


def test_the_longest_of_each_group_has_the_full_width():
    assert bar_chart(GROUPS, {}, 39, plain=False).plain == WIDE


def test_parts_of_a_cell():
    chart = bar_chart([BarGroup("", {"a": 8.0, "b": 3.25})], {}, 21, plain=False).plain
    assert [line.split()[1] for line in chart.splitlines()[1:]] == ["████████", "███▎"]


def test_on_a_terminal_without_these_characters():
    chart = bar_chart(GROUPS, {}, 39, plain=True).plain
    assert chart.isascii()
    assert [line.count("#") for line in chart.splitlines()] == [0, 20, 10, 1, 0, 0, 20, 10, 1]


@pytest.mark.parametrize("width", [20, 60, 100, 300])
def test_lines_fit(width):
    lines = bar_chart(GROUPS, {}, width, plain=False).plain.splitlines()
    # The narrowest bars have eight cells, whatever the terminal.
    assert max(map(len, lines)) <= max(width, 26)
    assert max(map(len, lines)) <= 66, "bars of no more than 48 cells"


def test_nothing_but_zeros():
    chart = bar_chart([BarGroup("none", {"a": 0.0, "b": 0.0})], {}, 80, plain=False).plain
    assert chart.splitlines() == ["none", "  a  ▏ 0 ms", "  b  ▏ 0 ms"]


@pytest.mark.parametrize(
    ("environment", "terminal", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({}, False, False)],
)
def test_colours_only_where_they_are_wanted(environment, terminal, coloured):
    out = io.StringIO()
    environment = {"TERM": "xterm-256color"} | environment
    console = Console(file=out, force_terminal=terminal, width=60, _environ=environment)
    console.print(bar_chart(GROUPS, STYLES, 39, plain=False))
    assert ("\x1b[33m" in out.getvalue()) == coloured
    assert ("\x1b[32m" in out.getvalue()) == coloured
