"""Colours on a terminal, and nowhere else."""

from __future__ import annotations

import io

import pytest

from prefetchd.cli.colours import coloured

TEXT = "prefetchd 0.1.0  healthy  pid 1\n! stream x has failed\n  > the trainer is the limit; the ring is full\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_it_is_coloured_and_says_the_same():
    found = coloured(TEXT, Terminal(), {"TERM": "xterm"})
    assert found != TEXT
    for code in ("\x1b[32m", "\x1b[33m", "\x1b[0m"):
        found = found.replace(code, "")
    assert found == TEXT


@pytest.mark.parametrize(
    ("stream", "env"),
    [(Terminal(), {"NO_COLOR": "1"}), (Terminal(), {"TERM": "dumb"}), (io.StringIO(), {"TERM": "xterm"})],
    ids=["NO_COLOR", "dumb", "no terminal"],
)
def test_elsewhere_it_is_not(stream, env):
    assert coloured(TEXT, stream, env) == TEXT
