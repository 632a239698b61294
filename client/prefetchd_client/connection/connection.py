"""Connection is the client's end of a session: it sends packets without ever blocking, and receives them with a
deadline."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections import deque

from prefetchd.wire.errors import DaemonUnavailableError, ProtocolError
from prefetchd.wire.framing import encode, receive_with_fds
from prefetchd.wire.messages import Message

SEND_WITHIN_S = 10.0


class Connection:
    """Sends and receives over a connected socket. Used by one thread at a time; sends never block, so that a daemon
    that does not read cannot stop a trainer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._outbox: deque[bytes] = deque()
        self.is_open = True
        self._takes_more = True
        sock.setblocking(False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: Message) -> None:
        """Sends now, or with a later send() when the daemon does not take it now. Raises nothing on a closed
        connection: the next receive tells."""
        if not self.is_open or not self._takes_more:
            return
        packet = encode(message)
        if not self._outbox:
            try:
                self._sock.send(packet)
                return
            except BlockingIOError:
                pass
            except OSError:
                self._end_sending()
                return
        self._outbox.append(packet)
        self.flush()

    def send_with_fds(self, message: Message, fds: list[int]) -> None:
        """Sends one packet with descriptors, which stay the caller's, after all that waits to be sent. Raises nothing
        on a closed connection, as send(). Raises BlockingIOError when the daemon does not take it within
        SEND_WITHIN_S."""
        if not self.is_open or not self._takes_more:
            return
        deadline_s = time.monotonic() + SEND_WITHIN_S
        while True:
            try:
                self.flush()
                if not self._outbox:
                    socket.send_fds(self._sock, [encode(message)], fds)
                    return
            except BlockingIOError:
                pass
            except OSError:
                self._end_sending()
                return
            if not self._takes_more:
                return
            if time.monotonic() >= deadline_s:
                raise BlockingIOError(errno.EAGAIN, "the daemon does not read")
            # Descriptors cannot wait in the outbox: they are the caller's, who closes them after this call. So this
            # send may block.
            poll = select.poll()
            poll.register(self._sock, select.POLLOUT)
            poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)

    def flush(self) -> None:
        """Sends what waits in the outbox, as far as the daemon takes it."""
        try:
            while self._outbox:
                self._sock.send(self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._end_sending()

    def _end_sending(self) -> None:
        # What the daemon said before it ended is still to be read.
        self._takes_more = False
        self._outbox.clear()

    def receive(self) -> tuple[Message, list[int]] | None:
        """Returns the next message that is there already, with its descriptors, or None. Never blocks.

        At the daemon's end `is_open` becomes False. Raises ProtocolError.
        """
        if not self.is_open:
            return None
        try:
            message, fds = self._receive()
        except BlockingIOError:
            return None
        except OSError:
            message, fds = None, []
        if message is None:
            self.is_open = False
            return None
        return message, fds

    def _receive(self) -> tuple[Message | None, list[int]]:
        try:
            return receive_with_fds(self._sock)
        except ConnectionResetError:
            # The daemon ended with something of ours unread. That is told once, before what it said last.
            return receive_with_fds(self._sock)

    def wait(self, timeout_s: float) -> bool:
        """Blocks until something can be received or `timeout_s` is over. Returns True for the former."""
        self.flush()
        return bool(self._poll.poll(max(0.0, timeout_s) * 1000))

    def expect(self, timeout_s: float) -> tuple[Message, list[int]]:
        """Waits for the next message, and returns it. Raises DaemonUnavailableError when it does not come in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = self.receive()
            if found is not None:
                return found
            if not self.is_open:
                raise DaemonUnavailableError("the daemon closed the connection")
            if not self.wait(deadline_s - time.monotonic()) and time.monotonic() >= deadline_s:
                raise DaemonUnavailableError(f"the daemon has not answered for {timeout_s:.0f} s; is it stopped?")

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._sock.close()


def unexpected(message: Message) -> ProtocolError:
    return ProtocolError(f"the daemon sent {type(message).__name__}, which is not expected here")
