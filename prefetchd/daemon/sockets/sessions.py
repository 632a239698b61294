"""Keeps the connections: who may talk to the daemon, what each may say when, and what waits to be sent.

A session sends nothing before Hello. A packet that the protocol does not allow ends the session and nothing else.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.refusal_log import RefusalLog
from prefetchd.wire.errors import InvariantError, PrefetchdError, ProtocolError
from prefetchd.wire.framing import Descriptors, close_all, encode, receive_with_fds
from prefetchd.wire.messages import Forked, Hello, Introduce, Message, Program, Refused, Welcome
from prefetchd.wire.peer_credentials import peer_credentials

MESSAGES_A_TURN = 64
OUTBOX_LIMIT = 256
REFUSAL_CHARACTERS = 4000
HELLO_WITHIN_S = 60.0


class SessionEvents(Protocol):
    """Receives what the sessions tell."""

    def trainer_hello(self, session: Session, hello: Hello) -> None: ...

    def trainer_program(self, session: Session, program: Program, fds: Descriptors) -> None:
        """The trainer hands its program over, with one descriptor, which the receiver takes if it keeps it."""

    def trainer_fork(self, session: Session, fork: Forked, fds: Descriptors) -> None:
        """The trainer hands over a fork of itself. The receiver takes `fds` if it keeps them."""

    def trainer_message(self, session: Session, message: Message) -> None: ...

    def control_message(self, session: Session, message: Message) -> None: ...

    def session_ready(self, session: Session) -> None:
        """All that was to be sent has left."""

    def session_ended(self, session: Session) -> None: ...


class Session:
    """One connection. Messages leave in order; what the peer does not take now waits here, up to a limit."""

    def __init__(
        self,
        number: int,
        sock: socket.socket,
        loop: Loop,
        events: SessionEvents,
        pidfd: int,
        introduce: Callable[[Descriptors], None],
        refusals: RefusalLog,
    ) -> None:
        """`introduce` takes the descriptor of another connection, as if it were accepted."""
        self.number = number
        self.role = ""
        self.opened_s = time.monotonic()
        self.peer_is_dead = False
        self.is_welcomed = False
        """True once Welcome was sent."""
        self._sock = sock
        self._pidfd = pidfd
        self._loop = loop
        self._events = events
        self._introduce = introduce
        self._refusals = refusals
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._closing = False
        self._has_left = False
        self._open = True
        sock.setblocking(False)
        loop.watch(sock.fileno(), self._readable)
        if pidfd >= 0:
            # A forked child of the trainer may keep the connection open after the trainer's death.
            loop.watch(pidfd, self._peer_died)

    @property
    def pidfd(self) -> int:
        """A pidfd of the peer's process, until session_ended() has returned; -1 when the kernel cannot tell."""
        return self._pidfd

    @property
    def peer_pid(self) -> int:
        """The peer's process as this one numbers it: 0 for one of a PID namespace that is not seen from here."""
        return peer_credentials(self._sock).pid

    @property
    def is_open(self) -> bool:
        """False once the session has ended."""
        return self._open

    @property
    def is_clear(self) -> bool:
        """True when nothing waits to be sent."""
        return self._open and not self._outbox and not self._has_left

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends the message, or keeps it for later. Never blocks. `fds` stay the caller's."""
        if not self._open or self._closing or self._has_left:
            return
        self.is_welcomed = self.is_welcomed or isinstance(message, Welcome)
        if isinstance(message, Refused):
            message = Refused(message.code, message.message[:REFUSAL_CHARACTERS])
        try:
            packet = encode(message)
        except ProtocolError as error:
            # Whatever was asked, an answer that does not fit ends this session and nothing else.
            packet, fds = encode(Refused(error.code, str(error))), ()
            self._closing = True
        try:
            kept = tuple(os.dup(fd) for fd in fds)
        except OSError:
            # Out of descriptors: the peer finds another way, or waits.
            self.close()
            return
        self._outbox.append((packet, kept))
        if len(self._outbox) > OUTBOX_LIMIT:
            # The peer does not read. Its leases end with it.
            self.close()
            return
        self._flush()

    def end_dead(self) -> None:
        """Ends the session now: its peer is dead, whatever of that the loop has yet to see."""
        if self._open:
            self._peer_died()

    def _peer_died(self) -> None:
        self.peer_is_dead = True
        # What the peer said last counts, such as Goodbye.
        self._readable()
        self.close()

    def check_hello(self) -> None:
        """Ends a session that has not said Hello by now."""
        if self._open and not self.role:
            self.refuse(ProtocolError(f"no Hello within {HELLO_WITHIN_S:.0f} s"))

    def close_when_sent(self) -> None:
        self._closing = True
        if not self._outbox:
            self.close()

    def close(self) -> None:
        """Ends the session now. Idempotent."""
        if not self._open:
            return
        self._open = False
        self._loop.unwatch(self._sock.fileno())
        if self._pidfd >= 0:
            self._loop.unwatch(self._pidfd)
        self._sock.close()
        for _, fds in self._outbox:
            close_all(fds)
        self._outbox.clear()
        try:
            self._events.session_ended(self)
        finally:
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1

    def _flush(self) -> None:
        try:
            while self._outbox:
                packet, fds = self._outbox[0]
                if fds:
                    socket.send_fds(self._sock, [packet], list(fds))
                else:
                    self._sock.send(packet)
                self._outbox.popleft()
                close_all(fds)
        except BlockingIOError:
            self._loop.watch_writes(self._sock.fileno(), self._writable)
            return
        except OSError:
            self._peer_left()
            return
        if self._closing:
            self.close()

    def _peer_left(self) -> None:
        """Notes that the peer takes nothing any more. What it said last counts, such as Goodbye; it is read in a turn
        of its own, as this may be within one of its messages."""
        for _, fds in self._outbox:
            close_all(fds)
        self._outbox.clear()
        if self._closing:
            self.close()
        elif not self._has_left:
            self._has_left = True
            self._loop.call_later(0.0, self._hear_the_last)

    def _hear_the_last(self) -> None:
        self._readable()
        self.close()

    def _writable(self) -> None:
        self._loop.watch_writes(self._sock.fileno(), None)
        self._flush()
        if self.is_clear:
            self._events.session_ready(self)

    def _readable(self) -> None:
        for _ in range(MESSAGES_A_TURN):
            if not self._open:
                return
            try:
                message, fds = receive_with_fds(self._sock)
            except BlockingIOError:
                return
            except ProtocolError as error:
                self.refuse(error)
                continue
            except ConnectionResetError:
                # The peer left without reading all. The kernel tells that once, before what the peer said last, such as
                # Goodbye.
                continue
            except OSError:
                self.close()
                return
            if message is None:
                self.close()
                return
            if self._closing:
                # Only waits for the peer to take what was sent.
                close_all(fds)
                continue
            try:
                with Descriptors(fds) as received:
                    self._handle(message, received)
            except PrefetchdError as error:
                self.refuse(error)
            except Exception as error:
                # A fault of ours: it costs the session on which it came to light, and nobody else.
                self._refusals.fault(self.number, message)
                self.refuse(InvariantError(f"the daemon cannot take this {type(message).__name__}: {error!r}"))

    def refuse(self, error: PrefetchdError) -> None:
        """Tells the peer why and ends the session."""
        if isinstance(error, ProtocolError):
            self._refusals.bad_message(self.number, error)
        self.send(Refused(error.code, str(error)))
        self.close_when_sent()

    def _handle(self, message: Message, fds: Descriptors) -> None:
        # The messages that bring descriptors come first; nobody takes those of any other message.
        if isinstance(message, Program) and self.role == "trainer" and len(fds) == 1:
            self._events.trainer_program(self, message, fds)
            return
        if isinstance(message, Forked) and self.role == "trainer":
            self._events.trainer_fork(self, message, fds)
            return
        if isinstance(message, Introduce) and not self.role and len(fds) == 1:
            self._introduce(fds)
            self.close()
            return
        if isinstance(message, Hello):
            if self.role:
                raise ProtocolError("a second Hello")
            if message.role not in ("trainer", "control"):
                raise ProtocolError(f"role {message.role[:20]!r}; allowed: 'trainer', 'control'")
            self.role = message.role
            if message.role == "trainer":
                self._events.trainer_hello(self, message)
            else:
                self._events.control_message(self, message)
        elif self.role == "trainer":
            self._events.trainer_message(self, message)
        elif self.role == "control":
            self._events.control_message(self, message)
        else:
            raise ProtocolError("a message before Hello")
