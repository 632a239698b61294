"""Progress collects what the daemon has not been told yet of a cursor's progress.

Telling it costs a message, and wakes the daemon; but until a good part of the ring is consumed it has little to do with
the slots. So several batches are told at once: at most every EVERY-th part of the ring, at most MOST of them, and none
later than with the first next() after LATEST_NS.
"""

from __future__ import annotations

from typing import Any

from prefetchd.wire.messages import Consumed

EVERY = 5
MOST = 16
LATEST_NS = 1_000_000_000


class Progress:
    """Collects the progress of one cursor at a time."""

    __slots__ = ("_count", "_released", "_waited_us", "cursor", "sent_ns")

    def __init__(self) -> None:
        self.cursor: Any = None
        self.sent_ns = 0
        self._count = 0
        self._waited_us = 0
        self._released: tuple[int, ...] = ()

    def went_on(self, cursor: Any, released: tuple[int, ...], waited_us: int) -> None:
        """Notes that `cursor`, the same as before unless all was told, has stepped on; `released` are (cursor, slot,
        generation) triples, flat."""
        self.cursor = cursor
        self._count += 1
        self._released += released
        self._waited_us += waited_us

    def is_due(self, now_ns: int, slots: int) -> bool:
        return self._count >= min(MOST, slots // EVERY) or now_ns - self.sent_ns > LATEST_NS

    def take(self) -> Consumed | None:
        """Returns all that was not told as one message, or None when all was told."""
        if not self._count:
            return None
        message = Consumed(self.cursor.number, self.cursor.step, self._released, self._waited_us)
        self._count = self._waited_us = 0
        self._released = ()
        self.cursor = None
        return message
