"""A peer that speaks the protocol by hand: what no client of ours would say."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from prefetchd.wire.framing import close_all, decode, encode, receive_with_fds
from prefetchd.wire.messages import PROTOCOL_VERSION, Hello, Message, Refused
from prefetchd.wire.stream_spec import StreamSpec, encode_spec

ANSWER_WITHIN_S = 20.0
FINGERPRINT = "0123456789abcdef" * 2


class Peer:
    """One connection; a context manager. Every wait ends after ANSWER_WITHIN_S with TimeoutError."""

    def __init__(self, to: str | os.PathLike[str] | socket.socket) -> None:
        """`to` is the daemon's socket, or a connection to it."""
        connected = isinstance(to, socket.socket)
        self.sock = to if connected else socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(ANSWER_WITHIN_S)
        if not connected:
            self.sock.connect(os.fspath(to))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def say(self, what: Message | bytes, fds: Sequence[int] = ()) -> None:
        packet = what if isinstance(what, bytes) else encode(what)
        if fds:
            socket.send_fds(self.sock, [packet], list(fds))
        else:
            self.sock.send(packet)

    def hear(self) -> Message | None:
        """The next message, or None at the connection's end."""
        try:
            message, fds = receive_with_fds(self.sock)
        except ConnectionResetError:
            # It closed with something of ours unread; what it said before is still there.
            message, fds = receive_with_fds(self.sock)
        close_all(fds)
        return message

    def refusal(self) -> Refused:
        """The refusal that ends the connection."""
        message = self.hear()
        assert isinstance(message, Refused), message
        assert self.hear() is None, "refused, and still connected"
        return message


def control_hello() -> Hello:
    return Hello(PROTOCOL_VERSION, "control", "a test", os.getpid())


def trainer_hello(stream: str = "raw", *, shared: bool = False, **spec: object) -> Hello:
    """A Hello that the daemon accepts, for a stream of 100 samples in batches of 4."""
    fields: dict = {"fingerprint": FINGERPRINT, "seed": 0, "order": "sequential", "length": 100, "batch_size": 4}
    encoded = encode_spec(StreamSpec(**(fields | spec)))
    return Hello(PROTOCOL_VERSION, "trainer", "a test", os.getpid(), stream, FINGERPRINT, encoded, shared)


def attach_hello(stream: str) -> Hello:
    """A Hello that asks for a declared stream by its name."""
    return Hello(PROTOCOL_VERSION, "trainer", "a test", os.getpid(), stream, "", b"", True)


def is_message(packet: bytes) -> bool:
    """True when the packet decodes."""
    try:
        decode(packet)
    except Exception:
        return False
    return True
