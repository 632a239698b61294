"""What commands ask of the daemon: one request, one answer."""

from __future__ import annotations

import os
from collections.abc import Callable

from prefetchd import __version__
from prefetchd.daemon.sessions import Session
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import PROTOCOL_VERSION, Farewell, Hello, Message, Stop, Welcome


class Control:
    """Answers control connections. `stop(reason)` ends the daemon."""

    def __init__(self, generation: int, stop: Callable[[str], None]) -> None:
        self._generation = generation
        self._stop = stop

    def message(self, session: Session, message: Message) -> None:
        """Raises ProtocolError for what a control connection does not send."""
        if isinstance(message, Hello):
            session.send(Welcome(PROTOCOL_VERSION, __version__, os.getpid(), self._generation))
        elif isinstance(message, Stop):
            session.send(Farewell("stopping"))
            self._stop("asked to stop")
        else:
            raise ProtocolError(f"a control connection does not send {type(message).__name__}")
