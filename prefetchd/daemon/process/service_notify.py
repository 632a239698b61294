"""Talks with the daemon's service manager: what sd_notify(3) tells, and what sd_listen_fds(3) hands over.
Decision 0032 says why no library does, and why the loop itself feeds the watchdog."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

from prefetchd.wire.errors import CallerError
from prefetchd.wire.printable import one_line

FIRST_FD = 3
STATUS_EVERY_S = 5.0
_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class Notifier:
    """Tells the service manager how the daemon is. Nothing here blocks, and a manager that is gone disturbs nobody."""

    def __init__(self, env: MutableMapping[str, str]) -> None:
        """Takes what is meant for this process out of `env`, so that no child takes it for its own."""
        address = env.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._sock: socket.socket | None = None
        if self._address:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._sock.setblocking(False)
        watched = env.get("WATCHDOG_PID") in (None, str(os.getpid()))
        usec = env.get("WATCHDOG_USEC", "")
        self._beat_every_s = int(usec) / 1e6 / 3 if watched and usec.isdecimal() and int(usec) else 0.0
        self._beat_at_s = self._sent_at_s = 0.0
        self._sent = ""
        for name in _OURS:
            env.pop(name, None)

    @property
    def has_manager(self) -> bool:
        """True when there is somebody to be told."""
        return self._sock is not None

    def ready(self) -> None:
        """Tells that the daemon accepts connections."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Tells that the daemon ends."""
        self._send("STOPPING=1")

    def came_round(self, now_s: float, status: str) -> None:
        """Tells that the loop has come round. To be called from it several times a second. `status` is a line for
        people."""
        lines = []
        if self._beat_every_s and now_s - self._beat_at_s >= self._beat_every_s:
            self._beat_at_s = now_s
            lines.append("WATCHDOG=1")
        if status != self._sent and now_s - self._sent_at_s >= STATUS_EVERY_S:
            self._sent, self._sent_at_s = status, now_s
            lines.append(f"STATUS={one_line(status)}")
        if lines:
            self._send("\n".join(lines))

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, text: str) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.sendto(text.encode(), self._address)


def listening_socket(env: MutableMapping[str, str]) -> socket.socket | None:
    """Returns the socket on which the service manager listens for us, or None. Raises CallerError when it is of no
    use."""
    if env.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = env.get("LISTEN_FDS", "0")
    if count != "1":
        raise CallerError(f"{count} sockets were handed over (LISTEN_FDS); allowed: 1, see prefetchd.socket")
    os.set_inheritable(FIRST_FD, False)
    try:
        sock = socket.socket(fileno=FIRST_FD)
    except OSError as error:
        raise CallerError(f"what was handed over (LISTEN_FDS) is no socket: {error}") from None
    try:
        _check(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _check(sock: socket.socket) -> None:
    kind = (sock.family, sock.type, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if kind != (socket.AF_UNIX, socket.SOCK_SEQPACKET, 1) or not isinstance(sock.getsockname(), str):
        raise CallerError(
            "the socket that was handed over (LISTEN_FDS) does not listen on a path with sequential packets; "
            "allowed: ListenSequentialPacket=PATH, see prefetchd.socket"
        )
