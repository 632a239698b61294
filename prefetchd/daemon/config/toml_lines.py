"""Finds the line of a TOML text on which each key stands, for errors that people can follow. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

Path = tuple[str, ...]

_TABLE = re.compile(r"\s*\[\[?\s*(?P<path>[^\]]*?)\s*\]\]?\s*(#.*)?")
_PAIR = re.compile(r"\s*(?P<path>(?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_KEY = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")


def line_numbers(text: str) -> dict[Path, int]:
    """Returns the line, counted from 1, of each table's header and of each key that begins a line. Keys in inline
    tables are not in it; lines of strings that look like keys may be."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _TABLE.fullmatch(line)) is not None:
            table = _keys(header["path"])
            found.setdefault(table, number)
        elif (pair := _PAIR.match(line)) is not None:
            found.setdefault(table + _keys(pair["path"]), number)
    return found


def line_of(path: Path, lines: Mapping[Path, int]) -> int:
    """Returns the line of `path`, or of the innermost table that surrounds it; 1 when none is known."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _keys(text: str) -> Path:
    return tuple(key.strip("\"'") for key in _KEY.findall(text))
