"""Accepts connections of a listening socket in the daemon's loop."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable

from prefetchd.daemon.process.loop import Loop

ACCEPT_AGAIN_S = 0.5


class Acceptor:
    """Hands each connection to `accepted`, which takes it over. Takes `sock` over."""

    def __init__(self, loop: Loop, sock: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
        self.sock = sock
        self._loop = loop
        self._accepted = accepted
        sock.setblocking(False)
        loop.watch(sock.fileno(), self._acceptable)

    def close(self) -> None:
        """Stops accepting. Idempotent."""
        if self.sock.fileno() >= 0:
            with contextlib.suppress(KeyError):
                self._loop.unwatch(self.sock.fileno())
            self.sock.close()

    def _acceptable(self) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # Watched on, the socket would say so again, round after round, until a descriptor is closed somewhere.
                self._loop.unwatch(self.sock.fileno())
                self._loop.call_later(ACCEPT_AGAIN_S, self._accept_again)
            return
        self._accepted(sock)

    def _accept_again(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.watch(self.sock.fileno(), self._acceptable)
