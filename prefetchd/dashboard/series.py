"""Keeps an hour of points of one stream, at a resolution that decreases with their age. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

LEVELS = ((1.0, 120.0), (5.0, 900.0), (15.0, 3600.0))
"""(seconds between two points, seconds to keep them): finest first."""
NUMBERS = 7
"""Columns that are numbers; the columns after them are texts, of which the last one of a span stays."""


class Series:
    """Keeps the points of one stream, each a row of prefetchd.status.points.COLUMNS."""

    def __init__(self) -> None:
        self._levels = [_Level(every_s, kept_s) for every_s, kept_s in LEVELS]

    def add(self, point: Sequence[Any]) -> None:
        """Add a point. One that is older than the last is left out."""
        for level in self._levels:
            level.add(point)

    def rows(self) -> list[list[Any]]:
        """Return the points, the oldest first: of each span those of the finest level that has it."""
        found: list[list[Any]] = []
        for level in self._levels:
            begin = found[0][0] if found else float("inf")
            found = [row for row in level.rows() if row[0] < begin - level.every_s / 2] + found
        return found


class _Level:
    def __init__(self, every_s: float, kept_s: float) -> None:
        self.every_s = every_s
        self._kept_s = kept_s
        self._rows: deque[list[Any]] = deque()
        self._span: list[Sequence[Any]] = []

    def add(self, point: Sequence[Any]) -> None:
        if self._span and point[0] <= self._span[-1][0]:
            return
        # Looks come a little early or late: a span ends at the look that is nearest to its end.
        if self._span and point[0] - self._span[0][0] > self.every_s - 0.5:
            self._rows.append(_mean(self._span))
            self._span = []
        self._span.append(point)
        while self._rows and self._rows[0][0] < point[0] - self._kept_s:
            self._rows.popleft()

    def rows(self) -> list[list[Any]]:
        return [*self._rows, _mean(self._span)] if self._span else list(self._rows)


def _mean(span: list[Sequence[Any]]) -> list[Any]:
    if len(span) == 1:
        return list(span[0])
    numbers: list[Any] = [span[-1][0]]
    for column in range(1, NUMBERS):
        known = [each[column] for each in span if each[column] is not None]
        numbers.append(round(sum(known) / len(known), 4) if known else None)
    return [*numbers, *span[-1][NUMBERS:]]
