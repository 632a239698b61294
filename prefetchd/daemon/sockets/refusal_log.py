"""Logs messages that sessions refuse: one line each, and not every one of a peer that goes on."""

from __future__ import annotations

import logging
import time

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Message

AGAIN_S = 10.0
"""Seconds between two lines about refused messages."""

log = logging.getLogger("prefetchd")


class RefusalLog:
    """Writes at most one line in AGAIN_S, with the number of those that it left out before."""

    def __init__(self) -> None:
        self._at_s = -AGAIN_S
        self._left_out = 0

    def bad_message(self, session: int, error: ProtocolError) -> None:
        """Log a message that the protocol does not allow."""
        if self._is_due():
            fields = {"session": session, "why": str(error), "left_out": self._take_left_out()}
            log.warning("bad message", extra={"fields": fields})

    def fault(self, session: int, message: Message) -> None:
        """Log the exception that is being handled, with its traceback: a fault of the daemon."""
        if self._is_due():
            fields = {"session": session, "message": type(message).__name__, "left_out": self._take_left_out()}
            log.exception("session", extra={"fields": fields})

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._at_s < AGAIN_S:
            self._left_out += 1
            return False
        self._at_s = now_s
        return True

    def _take_left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out
