"""Answers GET /metrics on a loopback port or a Unix socket: as much of HTTP as a scrape needs (RFC 9112).

One request a connection. Nothing blocks: a peer that is slow, or says too much, is closed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.acceptor import Acceptor
from prefetchd.daemon.sockets.private_socket import listen_privately
from prefetchd.wire.errors import CallerError

REQUEST_LIMIT_BYTES = 8192
WITHIN_S = 5.0
MOST_CONNECTIONS = 16
UNIX = "unix:"
_HOST = re.compile(rb"^host[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_HOST_AND_PORT = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z.-]+))(?::[0-9]{0,5})?")
"""The whole value of a Host header (RFC 9110, 7.2): an IPv6 address is in brackets. There is no user name in it."""


def listen_for_scrapes(address: str) -> socket.socket:
    """Returns a listening socket at "unix:PATH" or at "HOST:PORT" of the loopback. Raises CallerError."""
    try:
        if address.startswith(UNIX):
            return _listen_unix(Path(address[len(UNIX) :]))
        host, _, port = address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        if not ipaddress.ip_address("127.0.0.1" if host == "localhost" else host).is_loopback:
            raise ValueError("anybody who reaches it may read it, so it must be of the loopback")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A daemon that is restarted finds its predecessor's connections in TIME_WAIT on the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, int(port)))
            sock.listen(MOST_CONNECTIONS)
        except BaseException:
            sock.close()
            raise
        return sock
    except (OSError, ValueError, OverflowError) as error:
        raise CallerError(f"--metrics {address}: {error}; allowed: 127.0.0.1:PORT, [::1]:PORT or unix:PATH") from None


def _listen_unix(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if stat.S_ISSOCK(path.lstat().st_mode):
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink()
    return listen_privately(path, socket.SOCK_STREAM, MOST_CONNECTIONS)


class Scrapes:
    """Answers scrapes on `sock`, which it takes over, with what `text` returns."""

    def __init__(self, loop: Loop, sock: socket.socket, text: Callable[[], bytes], content_type: str) -> None:
        self._loop = loop
        self._sock = sock
        self._text = text
        self._content_type = content_type
        # In the order in which they came.
        self._connections: dict[_Connection, None] = {}
        self._acceptor = Acceptor(loop, sock, self._accepted)

    def close(self) -> None:
        """Stops answering, and removes a Unix socket. Idempotent."""
        for connection in list(self._connections):
            connection.close()
        if self._sock.fileno() < 0:
            return
        if self._sock.family == socket.AF_UNIX:
            with contextlib.suppress(OSError):
                os.unlink(self._sock.getsockname())
        self._acceptor.close()

    def _accepted(self, sock: socket.socket) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            # The first to come has had the most time: slow connections do not keep others out.
            next(iter(self._connections)).close()
        connection = _Connection(self._loop, sock, self._answer, self._forget)
        self._connections[connection] = None
        self._loop.call_later(WITHIN_S, connection.close)

    def _forget(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if self._sock.family != socket.AF_UNIX and not _names_loopback(request):
            # A page in somebody's browser may ask in the name of a domain that it has pointed here.
            status, kind, body = "403 Forbidden", "text/plain", b"ask by localhost or a loopback address\n"
        elif method not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed", "text/plain", b"GET or HEAD\n"
        elif path != b"/metrics":
            status, kind, body = "404 Not Found", "text/plain", b"/metrics is all there is\n"
        else:
            status, kind, body = "200 OK", self._content_type, self._text()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + (b"" if method == b"HEAD" else body)


def _names_loopback(request: bytes) -> bool:
    """True when every Host in the request is a name of this machine for itself, or there is none (HTTP/1.0)."""
    return all(map(_is_loopback, _HOST.findall(request)))


def _is_loopback(host: bytes) -> bool:
    found = _HOST_AND_PORT.fullmatch(host.strip(b" \t").decode("latin-1").lower())
    if found is None:
        return False
    in_brackets, name = found.groups()
    if name == "localhost":
        return True
    try:
        return (
            ipaddress.IPv6Address(in_brackets).is_loopback if in_brackets else ipaddress.IPv4Address(name).is_loopback
        )
    except ValueError:
        return False


class _Connection:
    """Reads one request and sends its answer."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        answer: Callable[[bytes], bytes],
        ended: Callable[[_Connection], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._answer = answer
        self._ended = ended
        self._request = b""
        self._left = memoryview(b"")
        sock.setblocking(False)
        loop.watch(sock.fileno(), self._readable)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._sock.fileno() >= 0:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
            self._ended(self)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(REQUEST_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._request) > REQUEST_LIMIT_BYTES:
            self.close()
            return
        if self._left:
            # Only the end of the connection is awaited now.
            return
        self._request += data
        if b"\r\n\r\n" in self._request or b"\n\n" in self._request:
            self._left = memoryview(self._answer(self._request))
            self._writable()

    def _writable(self) -> None:
        try:
            while self._left:
                self._left = self._left[self._sock.send(self._left) :]
        except BlockingIOError:
            self._loop.watch_writes(self._sock.fileno(), self._writable)
            return
        except OSError:
            pass
        self.close()
