"""Tries again what a zygote needs a process for, when none can be had, until it can."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

from prefetchd.wire.os_errors import why

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0


@dataclasses.dataclass
class _Attempt:
    what: str
    make: Callable[[], None]
    pause_s: float
    due_s: float


class Attempts:
    """The attempts of one process. Whoever waits for something else waits no longer than `pause_s`, and calls
    again()."""

    def __init__(self) -> None:
        self._waiting: list[_Attempt] = []

    def make(self, what: str, make: Callable[[], None]) -> None:
        """Calls make(), which forks. When that raises OSError, stderr says once that `what` cannot be done, and make()
        is called again after a pause, which grows."""
        self._make(_Attempt(what, make, 0.0, 0.0))

    @property
    def pause_s(self) -> float | None:
        """The seconds until again() has something to do; None while there is nothing."""
        if not self._waiting:
            return None
        return max(0.0, min(each.due_s for each in self._waiting) - time.monotonic())

    def again(self) -> None:
        """Tries again what is due."""
        now_s = time.monotonic()
        due = [each for each in self._waiting if each.due_s <= now_s]
        self._waiting = [each for each in self._waiting if each.due_s > now_s]
        for each in due:
            self._make(each)

    def forget(self) -> None:
        """Drops all attempts, in a forked child: they are the parent's."""
        self._waiting.clear()

    def _make(self, attempt: _Attempt) -> None:
        try:
            attempt.make()
        except OSError as error:
            if not attempt.pause_s:
                print(f"prefetchd: {attempt.what}: {why(error)}; it is tried again", file=sys.stderr, flush=True)
            attempt.pause_s = min(2 * attempt.pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            attempt.due_s = time.monotonic() + attempt.pause_s
            self._waiting.append(attempt)
