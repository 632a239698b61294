"""LongWait decides what the trainer's stderr says of a call of next() that waits for long, and when."""

from __future__ import annotations

import math
import sys
import time

from prefetchd.wire.messages import WaitNamed

NAME_AFTER_S = 60.0
NAME_AGAIN_S = 30.0
DAEMON_NAMES_WITHIN_S = 3.0
"""Seconds after which the client says why a call waits, as well as it can, if the daemon has not: the daemon says why
itself, and every time again."""
ANSWERS_WITHIN_S = 2.0
"""Seconds that a call of next() waits beyond its timeout to be told why. A look at a worker takes up to 1 s."""


class LongWait:
    """Follows one call of next() from its beginning. With a `timeout_s` other than 0 the call raises after so long; the
    daemon is then asked why, and what it says is for the error."""

    def __init__(self, stream: str, epoch: int, step: int, timeout_s: float = 0.0) -> None:
        self._stream = stream
        self._position = (epoch, step)
        self._began_ns = time.monotonic_ns()
        self.name_at_s = NAME_AFTER_S + DAEMON_NAMES_WITHIN_S
        self.over_at_s = timeout_s or math.inf
        self.answered_by_s = math.inf
        self.why = ""
        """The daemon's reason for the timeout of this call, or an empty string."""

    def times_out(self) -> None:
        """Notes that the daemon has been asked why: the call raises when the daemon has answered, ANSWERS_WITHIN_S
        later at most."""
        self.over_at_s = math.inf
        self.answered_by_s = self.waited_s + ANSWERS_WITHIN_S

    @property
    def is_over(self) -> bool:
        """True when the call will raise, as soon as it is known why."""
        return self.answered_by_s < math.inf

    @property
    def is_answered(self) -> bool:
        """True when the daemon has said why the call times out, or is not expected to any more."""
        return bool(self.why) or self.waited_s >= self.answered_by_s

    @property
    def wake_at_s(self) -> float:
        """The time at which there is something to do if nothing comes."""
        return min(self.name_at_s, self.over_at_s, self.answered_by_s)

    @property
    def waited_s(self) -> float:
        return (time.monotonic_ns() - self._began_ns) / 1e9

    @property
    def waited_us(self) -> int:
        return (time.monotonic_ns() - self._began_ns) // 1000

    def name(self, why: str) -> None:
        """Says what the client itself knows; due at `name_at_s`."""
        self._say(why)
        self.name_at_s = self.waited_s + NAME_AGAIN_S

    def named(self, message: WaitNamed) -> None:
        """Says what the daemon knows; keeps it where the call times out."""
        if self.is_over:
            self.why = message.text
            return
        self._say(message.text)
        self.name_at_s = self.waited_s + NAME_AGAIN_S + DAEMON_NAMES_WITHIN_S

    def _say(self, why: str) -> None:
        first, *more = why.split("\n")
        epoch, step = self._position
        what = f"epoch {epoch} step {step} of stream {self._stream!r}"
        print(f"prefetchd: waiting for {what} for {self.waited_s:.0f} s: {first}", file=sys.stderr)
        for line in more:
            print(f"prefetchd: {line}", file=sys.stderr)
