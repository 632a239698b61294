"""Shows how far streams are filled: a bar that is drawn over and over on a terminal, else a line now and then.

1. Nothing is shown within the first second: what was filled before needs no words.
2. A bar is drawn five times a second at most, and is gone in the end. It is that of the stream that is waited for.
3. Where no terminal looks, a line is written at once then, every LINE_EVERY_S, and when another stream is waited for.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from types import TracebackType

from prefetchd.wire.printable import one_line

SHOWN_AFTER_S = 1.0
BAR_EVERY_S = 0.2
LINE_EVERY_S = 10.0
BAR_CHARACTERS = 24


@dataclasses.dataclass(frozen=True)
class Filling:
    """What is waited for: a stream, `ready` of `wanted` batches, and what it is `at`. `wanted` 0: nobody knows yet.
    The stream is the one of this `number` among `streams`."""

    stream: str
    ready: int
    wanted: int
    at: str = ""
    number: int = 1
    streams: int = 1

    def __str__(self) -> str:
        of = f" of {self.wanted}" if self.wanted else ""
        return f"stream {self.stream!r} has {self.ready}{of} batches ready" + (f": {self.at}" if self.at else "")


class FillProgress:
    """Shows what show() is told, on stderr. A context manager."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._shown_s = float("-inf")
        self._stream = ""
        self._has_bar = False

    def __enter__(self) -> FillProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_bar:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def show(self, filling: Filling) -> None:
        """Shows it, if it is time to. To be called several times a second."""
        now_s = time.monotonic()
        took_s = now_s - self._began_s
        is_terminal = sys.stderr.isatty()
        is_due = now_s - self._shown_s >= (BAR_EVERY_S if is_terminal else LINE_EVERY_S)
        if took_s < SHOWN_AFTER_S or not (is_due or filling.stream != self._stream):
            return
        self._shown_s, self._stream = now_s, filling.stream
        if is_terminal:
            self._has_bar = True
            sys.stderr.write(f"\r\x1b[K{one_line(bar(filling, took_s))}")
        else:
            sys.stderr.write(f"{one_line(f'{filling} ({took_s:.0f} s)')}\n")
        sys.stderr.flush()


def bar(filling: Filling, took_s: float) -> str:
    """Returns the line with the bar."""
    full = BAR_CHARACTERS * min(filling.ready, filling.wanted) // filling.wanted if filling.wanted else 0
    drawn = "=" * full + " " * (BAR_CHARACTERS - full)
    which = f" ({filling.number} of {filling.streams})" if filling.streams > 1 else ""
    of = f"/{filling.wanted}" if filling.wanted else ""
    at = f"  {filling.at}" if filling.at else ""
    return f"filling {filling.stream}{which} [{drawn}] {filling.ready}{of} batches{at}  {took_s:.0f} s"
