"""Colours text where that is wanted: on a terminal, and not with NO_COLOR."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TextIO

import click

STYLES = [
    (re.compile(r"^! .*$", re.M), "yellow"),
    (re.compile(r"^  failed: .*$", re.M), "red"),
    (re.compile(r"\bhealthy\b"), "green"),
    (re.compile(r"\b(?:degraded|hanging)\b"), "yellow"),
    (re.compile(r"\bdead\b"), "red"),
    (re.compile(r"^  > (?:the trainer is the limit).*$", re.M), "green"),
    (re.compile(r"^  > (?:loader-bound).*$", re.M), "yellow"),
]


def wants_colours(stream: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """Returns True where colours are wanted, as no-color.org has it: never with NO_COLOR set to anything, nor where
    nobody looks."""
    return not env.get("NO_COLOR") and env.get("TERM") != "dumb" and stream.isatty()


def coloured(text: str, stream: TextIO, env: Mapping[str, str] = os.environ) -> str:
    """Colours `text` of status for `stream`; leaves it as it is where no colours are wanted."""
    if not wants_colours(stream, env):
        return text
    for pattern, colour in STYLES:
        text = pattern.sub(lambda found, colour=colour: click.style(found[0], fg=colour), text)  # type: ignore[misc]
    return text
