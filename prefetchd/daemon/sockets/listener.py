"""Accepts the connections of the daemon's own user, and knows the sessions that they are."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable

from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.acceptor import Acceptor
from prefetchd.daemon.sockets.refusal_log import RefusalLog
from prefetchd.daemon.sockets.sessions import HELLO_WITHIN_S, Session, SessionEvents
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import Descriptors, encode
from prefetchd.wire.messages import Refused
from prefetchd.wire.os_errors import why
from prefetchd.wire.peer_credentials import peer_credentials

_SO_PEERPIDFD = 77


class Listener:
    """Accepts connections of the daemon's own uid on a listening socket."""

    def __init__(
        self, sock: socket.socket, loop: Loop, events: SessionEvents, log: Callable[[str, str, int], None]
    ) -> None:
        self.sessions: dict[int, Session] = {}
        self._loop = loop
        self._events = events
        self._log = log
        self._next = 1
        self._refusals = RefusalLog()
        self._acceptor = Acceptor(loop, sock, self._accepted)

    def listen_on(self, sock: socket.socket) -> None:
        """Accepts on `sock` from now on, and on the former socket no more; sessions go on."""
        self.close()
        self._acceptor = Acceptor(self._loop, sock, self._accepted)

    def close(self) -> None:
        """Stops accepting; sessions go on. Idempotent."""
        self._acceptor.close()

    def end_dead(self) -> None:
        """Ends the sessions of all peers that are dead. One poll() asks about all of them: there may be thousands."""
        poll = select.poll()
        by_pidfd = {session.pidfd: session for session in self.sessions.values() if session.pidfd >= 0}
        for pidfd in by_pidfd:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(0):
            by_pidfd[pidfd].end_dead()

    def end_silent(self, now_s: float) -> None:
        """Ends sessions that have not said Hello in time. To be called now and then: a timer for each would keep those
        that come and go quickly for as long."""
        for session in [each for each in self.sessions.values() if each.opened_s + HELLO_WITHIN_S <= now_s]:
            session.check_hello()

    def _accepted(self, sock: socket.socket) -> None:
        uid = peer_credentials(sock).uid
        if not self.admits(uid):
            self._log("warning", "refused a connection of another uid", uid)
            with contextlib.suppress(OSError):
                sock.send(
                    encode(Refused("daemon_refused", f"this daemon serves uid {os.geteuid()}; you are uid {uid}"))
                )
            sock.close()
            return
        session = Session(
            self._next, sock, self._loop, self._events, _peer_pidfd(sock), self._introduced, self._refusals
        )
        self._next += 1
        self.sessions[session.number] = session

    def _introduced(self, fds: Descriptors) -> None:
        """Takes the descriptor of a connection. Raises ProtocolError when it is none."""
        try:
            sock = socket.socket(fileno=fds[0])
        except OSError as error:
            raise ProtocolError(f"what was introduced is no socket: {why(error)}") from None
        fds.take()
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET) or not _is_connected(sock):
            sock.close()
            raise ProtocolError("what was introduced is no connection")
        self._accepted(sock)

    def admits(self, uid: int) -> bool:
        """True for the daemon's own user: anybody else could read its data and run its code."""
        return uid == os.geteuid()


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _peer_pidfd(sock: socket.socket) -> int:
    """Returns a pidfd of the process that connected, or -1 when it is gone or the kernel cannot tell."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pid = peer_credentials(sock).pid
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1
