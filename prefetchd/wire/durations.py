"""Counts how long things took, by length. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = tuple(mantissa * 10.0**exponent for exponent in (-4, -3, -2, -1, 0, 1) for mantissa in (1.0, 2.5, 5.0)) + (
    100.0,
)
"""The histogram's upper bounds, included; what is longer than the last is counted after it."""
_BOUNDS_US = tuple(round(bound * 1e6) for bound in BOUNDS_S)
SHORT_US = _BOUNDS_US[0]


class Durations:
    """A histogram: `counts[i]` counts durations up to BOUNDS_S[i], the last one all that are longer; `total_us` is
    their sum."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_us = 0

    def add(self, duration_us: int, times: int = 1) -> None:
        """Counts `times` durations of `duration_us` each."""
        self.counts[bisect_left(_BOUNDS_US, duration_us)] += times
        self.total_us += duration_us * times

    def add_short(self, total_us: int, times: int) -> None:
        """Counts `times` durations of at most SHORT_US each, which are `total_us` together."""
        self.counts[0] += times
        self.total_us += total_us

    def take(self) -> tuple[int, ...]:
        """Empties the histogram. Returns what was added since the last call, for include(): total_us, then (index into
        `counts`, count) of the counts that are not 0."""
        found = [self.total_us]
        for place, count in enumerate(self.counts):
            if count:
                found += (place, count)
                self.counts[place] = 0
        self.total_us = 0
        return tuple(found)

    def include(self, taken: Sequence[int]) -> None:
        """Adds what another histogram's take() gave. Raises ValueError when that is not what take() gives."""
        total_us, *pairs = taken
        places, counts = pairs[::2], pairs[1::2]
        if len(places) != len(counts) or any(not 0 <= each < len(self.counts) for each in places):
            raise ValueError(f"durations {taken[:8]!r}")
        self.total_us += total_us
        for place, count in zip(places, counts):
            self.counts[place] += count
