"""One call of next() that waits for long: what the trainer's stderr says of it, and when."""

from __future__ import annotations

import sys
import time

from prefetchd.wire.messages import WaitNamed

NAME_AFTER_S = 60.0
NAME_AGAIN_S = 30.0
DAEMON_NAMES_WITHIN_S = 3.0
"""The daemon says why, and every time again; what it has not said by so much later the client says, as well as it
can."""


class LongWait:
    """From the call on."""

    def __init__(self, stream: str, epoch: int, step: int) -> None:
        self._stream = stream
        self._position = (epoch, step)
        self._began_ns = time.monotonic_ns()
        self.name_at_s = NAME_AFTER_S + DAEMON_NAMES_WITHIN_S

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
        """Says what the daemon knows."""
        self._say(message.text)
        self.name_at_s = self.waited_s + NAME_AGAIN_S + DAEMON_NAMES_WITHIN_S

    def _say(self, why: str) -> None:
        first, *more = why.split("\n")
        epoch, step = self._position
        what = f"epoch {epoch} step {step} of stream {self._stream!r}"
        print(f"prefetchd: waiting for {what} for {self.waited_s:.0f} s: {first}", file=sys.stderr)
        for line in more:
            print(f"prefetchd: {line}", file=sys.stderr)
