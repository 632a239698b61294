"""Bounds how much of what one stream's code prints goes into the daemon's log."""

from __future__ import annotations

import time
from collections.abc import Sequence

LOG_LINES, LOG_LINES_A_SECOND = 2000, 20
LOG_BYTES, LOG_BYTES_A_SECOND = 4 << 20, 4 << 10
"""The most that a stream may print into the log at once, and in the long run: else one that prints without end would
have the log rotated away under all others. At this rate that takes more than an hour."""


class LogRoom:
    """Holds what one stream may still print into the log: it is filled up again as time goes by."""

    def __init__(self) -> None:
        self._at_s = time.monotonic()
        self._lines: float = LOG_LINES
        self._bytes: float = LOG_BYTES

    def admit(self, lines: Sequence[str]) -> int:
        """Returns how many of the lines, from the first on, may go into the log now."""
        now_s = time.monotonic()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._lines = min(LOG_LINES, self._lines + passed_s * LOG_LINES_A_SECOND)
        self._bytes = min(LOG_BYTES, self._bytes + passed_s * LOG_BYTES_A_SECOND)
        admitted = 0
        for line in lines:
            if self._lines < 1 or self._bytes < 1:
                break
            self._lines -= 1
            self._bytes -= len(line)
            admitted += 1
        return admitted
