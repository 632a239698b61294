"""Shows a sign of life on stderr for what takes longer than a second; nothing where no terminal looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from prefetchd.wire.printable import one_line

SHOWN_AFTER_S = 1.0
EVERY_S = 0.2


class Patience:
    """Shows `what`, with the seconds that it has taken, while go_on() is called now and then. A context manager."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began_s = time.monotonic()
        self._shown_s = 0.0

    def __enter__(self) -> Patience:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown_s:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def go_on(self, what: str | None = None) -> None:
        """Shows that it still takes time, perhaps with something else now."""
        self._what = what or self._what
        now_s = time.monotonic()
        if now_s - self._began_s < SHOWN_AFTER_S or now_s - self._shown_s < EVERY_S or not sys.stderr.isatty():
            return
        self._shown_s = now_s
        sys.stderr.write(f"\r\x1b[K{one_line(self._what)} ({now_s - self._began_s:.0f} s)")
        sys.stderr.flush()
