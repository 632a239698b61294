"""Counts how often in a row no process could be had for a stream, and says when it is tried again. Pure.

1. After a failure no process is started for the stream for a while: FIRST_PAUSE_S, twice as long after each further
   one, at most LONGEST_PAUSE_S.
2. Failures during a pause are of what was asked for before: they count as one.
3. A process that could be had ends it all.
"""

from __future__ import annotations

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0


class FailedStarts:
    """The failed starts of one stream. `why` is what the last one failed for; it is empty when there was none."""

    def __init__(self) -> None:
        self.count = 0
        self.why = ""
        self._again_s: float | None = None

    @property
    def is_pausing(self) -> bool:
        """True while no process is to be started."""
        return self._again_s is not None

    def add(self, now_s: float, why: str) -> bool:
        """Notes that no process can be had (rules 1 and 2). True the first time in a row."""
        self.why = why
        if self._again_s is not None:
            return False
        self.count += 1
        self._again_s = now_s + min(FIRST_PAUSE_S * 2 ** (self.count - 1), LONGEST_PAUSE_S)
        return self.count == 1

    def end_pause(self, now_s: float) -> bool:
        """Lets a process be started once the pause is over; True then."""
        if self._again_s is None or now_s < self._again_s:
            return False
        self._again_s = None
        return True

    def clear(self) -> None:
        """Notes that a process could be had (rule 3)."""
        self.count, self.why, self._again_s = 0, "", None
