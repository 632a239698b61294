"""The client's end of a session: packets out without ever blocking, packets in with a deadline."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque

from prefetchd.wire.errors import DaemonUnavailableError, ProtocolError
from prefetchd.wire.framing import encode, receive_with_fds
from prefetchd.wire.messages import Message


class Connection:
    """A connected socket. Used by one thread at a time; sends never block, so that a daemon that does not read cannot
    stop a trainer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._outbox: deque[bytes] = deque()
        self.is_open = True
        self._takes_more = True
        sock.setblocking(False)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: Message) -> None:
        """Sends now, or with a later send() when the daemon does not take it now. Silent on a closed connection: the
        next receive tells."""
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

    def send_with_fd(self, message: Message, fd: int) -> None:
        """Sends one packet with a descriptor; only before the stream runs. Silent on a closed connection, as send().
        Raises BlockingIOError."""
        try:
            socket.send_fds(self._sock, [encode(message)], [fd])
        except BlockingIOError:
            raise
        except OSError:
            self._end_sending()

    def flush(self) -> None:
        """Sends what waits, as far as the daemon takes it."""
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
        """The next message that is there already, with its descriptors, or None. Never blocks.

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
        """Until something can be received or `timeout_s` is over; True for the former."""
        self.flush()
        return bool(self._poll.poll(max(0.0, timeout_s) * 1000))

    def expect(self, timeout_s: float) -> tuple[Message, list[int]]:
        """The next message, waiting for it. Raises DaemonUnavailableError when it does not come in time."""
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
        """Idempotent."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self._sock.close()


def unexpected(message: Message) -> ProtocolError:
    return ProtocolError(f"the daemon sent {type(message).__name__}, which is not expected here")
