"""Checks single values of the configuration: what each may be, and what is said of one that is not allowed. Pure."""

from __future__ import annotations

import math
import os.path
import re
from collections.abc import Callable, Mapping
from typing import Any

from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.errors import CallerError

UNSET: Any = object()
"""A mark in the place of a value that the file does not give, or gives wrongly."""

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class NotAllowed(Exception):  # noqa: N818 - it never leaves this module
    """The value is not allowed; the text says what is."""


Check = Callable[[Any, str], Any]
"""A function that checks a value: (value, directory of the file) -> the value as it is kept. Raises NotAllowed."""


class Checked:
    """Collects what is wrong with a file."""

    def __init__(self, file: str, directory: str, line_of: Callable[[tuple[str, ...]], int]) -> None:
        self.problems: list[str] = []
        self._file = file
        self._directory = directory
        self._line_of = line_of

    def wrong(self, path: tuple[str, ...], got: object, allowed: str) -> None:
        told = "nothing" if got is None else repr(got)
        told = told if len(told) <= 80 else told[:77] + "..."
        self.problems.append(f"{self._file}:{self._line_of(path)}: {'.'.join(path)} is {told}; allowed: {allowed}")

    def only(self, raw: Mapping[str, Any], path: tuple[str, ...], known: tuple[str, ...]) -> None:
        """Reports keys that nobody knows as mistakes."""
        for key in raw:
            if key not in known:
                # Imported here: most daemons start without it.
                import difflib

                close = difflib.get_close_matches(key, known, 1)
                hint = f"{close[0]}? One of " if close else ""
                where = self._line_of((*path, key))
                name = ".".join((*path, key))
                self.problems.append(f"{self._file}:{where}: {name} is unknown; allowed: {hint}{', '.join(known)}")

    def table(self, raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        found = raw.get(key, {})
        if isinstance(found, dict):
            return found
        self.wrong((key,), found, f"a table, [{key}]")
        return {}

    def value(self, raw: Mapping[str, Any], path: tuple[str, ...], key: str, check: Check) -> Any:
        """Returns raw[key] as `check` keeps it, or UNSET."""
        if key not in raw:
            return UNSET
        try:
            return check(raw[key], self._directory)
        except NotAllowed as error:
            self.wrong((*path, key), raw[key], str(error))
            return UNSET


def as_whole(low: int, high: int, otherwise: str = "") -> Check:
    """Returns a check for a whole number from `low` to `high`."""

    def check(value: Any, _: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise NotAllowed(f"a whole number, {low} to {high}{' ' + otherwise if otherwise else ''}")
        return value

    return check


def as_number(low: float) -> Check:
    """Returns a check for a number of seconds, `low` or more."""

    def check(value: Any, _: str) -> float:
        if type(value) not in (int, float) or not low <= value < math.inf:
            raise NotAllowed(f"seconds, {low:g} or more")
        return float(value)

    return check


def as_choice(*choices: str) -> Check:
    def check(value: Any, _: str) -> str:
        if value not in choices:
            raise NotAllowed(", ".join(map(repr, choices)))
        return str(value)

    return check


def as_bool(value: Any, _: str) -> bool:
    if type(value) is not bool:
        raise NotAllowed("true or false")
    return value


def as_text(value: Any, _: str) -> str:
    if not isinstance(value, str):
        raise NotAllowed("a text")
    return value


def as_table(value: Any, _: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotAllowed("a table")
    return value


def is_plain(value: Any) -> bool:
    """Returns True for what JSON can say, too; of TOML's values all but dates and times."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, (str, int, float, bool))


def as_size(value: Any, _: str) -> int:
    """Returns a size in bytes, 1 or more, that is given as in "8GiB"."""
    try:
        size = parse_bytes(value, "") if isinstance(value, str) else 0
    except CallerError:
        size = 0
    if not 0 < size < 1 << 62:
        raise NotAllowed("a size, as in '8GiB', '500MB' or '4096'")
    return size


def as_path(value: Any, directory: str) -> str:
    """Returns an absolute path; `~` is the home directory, and a relative path starts at the file's directory."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise NotAllowed("a path")
    return os.path.normpath(os.path.join(directory, os.path.expanduser(value)))


def as_entry_point(value: Any, _: str) -> str:
    if not isinstance(value, str) or not _ENTRY_POINT.fullmatch(value):
        raise NotAllowed('"module:name", as in "my_package.data:make_dataset"')
    return value
