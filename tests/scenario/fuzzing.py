"""Messages that no client of ours would send, to a daemon that serves one: random bytes, real messages cut short or
damaged, and well-formed ones that say what cannot be, with descriptors that do not belong there."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket

import msgpack

from prefetchd.wire.framing import MAX_PACKET_BYTES, MAX_PACKET_FDS, decode, encode
from prefetchd.wire.messages import (
    Assume,
    CloseCursor,
    Consumed,
    Evict,
    GiveBack,
    Goodbye,
    Hello,
    Message,
    Pause,
    PlaceCursor,
    Program,
    Resume,
    SetLogLevel,
    ShardStart,
    Stop,
    Trace,
    Waiting,
)
from prefetchd.wire.runtime_paths import RuntimePaths
from tests.scenario.fuzzed_trainer import STREAM
from tests.scenario.raw_peer import control_hello, trainer_hello

SESSIONS = 24
SPEC = {"order": "sequential", "length": 100, "batch_size": 4}
SMALL = range(-2, 12)
LARGE = (1 << 31, (1 << 60) - 1, 1 << 60, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63))


def _has_a_right_to_harm(message: Message) -> bool:
    """What ends the daemon, or holds up or ends a trainer's stream, as its sender may."""
    harms = ("", STREAM)
    return isinstance(message, Stop) or (isinstance(message, (Pause, Evict)) and message.stream in harms)


class Fuzz:
    """A crowd of peers that comes and goes, everything chosen by `seed`.

    `joined` is the Hello of a stream that somebody else consumes: some peers say they share it.
    """

    def __init__(self, paths: RuntimePaths, seed: int, joined: Hello | None = None) -> None:
        self.sent = 0
        self.sessions = 0
        self._paths = paths
        self._dice = random.Random(seed)
        self._joined = joined
        self._peers: list[socket.socket] = []
        self._fds = [os.open(os.devnull, os.O_RDWR), *os.pipe(), os.memfd_create("fuzz")]

    def send(self, messages: int) -> None:
        """So many more."""
        until = self.sent + messages
        while self.sent < until:
            if len(self._peers) < SESSIONS:
                self._connect()
            peer = self._dice.choice(self._peers)
            for _ in range(self._dice.randint(1, 3)):
                if not (self._listen(peer) and self._say(peer)):
                    self._peers.remove(peer)
                    peer.close()
                    break

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()
        while self._fds:
            os.close(self._fds.pop())

    # --- peers ---

    def _connect(self) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Blocking: the daemon accepts as fast as it can.
        peer.connect(os.fspath(self._paths.socket))
        peer.setblocking(False)
        self.sessions += 1
        self._peers.append(peer)
        if self._dice.random() < 0.7:
            self._send(peer, encode(self._hello()))

    def _hello(self) -> Hello:
        kind = self._dice.randrange(6)
        if kind == 0:
            return control_hello()
        if kind < 3 and self._joined is not None:
            return self._joined
        return trainer_hello(f"fuzz {self._dice.randrange(8)}", shared=self._dice.random() < 0.5)

    def _listen(self, peer: socket.socket) -> bool:
        """False when the daemon has ended the connection; every fifth peer does not want to know."""
        if peer.fileno() % 5 == 0:
            return True
        try:
            while peer.recv(MAX_PACKET_BYTES + 1):
                pass
        except BlockingIOError:
            return True
        except OSError as error:
            # The latter of a connect() that was interrupted while the daemon's backlog was full.
            if error.errno not in (errno.ECONNRESET, errno.ENOTCONN):
                raise
        return False

    def _say(self, peer: socket.socket) -> bool:
        """False when the peer is done with."""
        if self._dice.random() < 0.02:
            return False
        packet = self._packet()
        with contextlib.suppress(Exception):
            if _has_a_right_to_harm(decode(packet)):
                return True
        return self._send(peer, packet, self._descriptors())

    def _send(self, peer: socket.socket, packet: bytes, fds: tuple[int, ...] = ()) -> bool:
        try:
            if fds:
                socket.send_fds(peer, [packet], list(fds))
            else:
                peer.send(packet)
        except BlockingIOError:
            return self._dice.random() < 0.5
        except OSError:
            return False
        self.sent += 1
        return True

    def _descriptors(self) -> tuple[int, ...]:
        if self._dice.random() < 0.9:
            return ()
        return tuple(self._dice.choices(self._fds, k=self._dice.randint(1, MAX_PACKET_FDS + 2)))

    # --- packets ---

    def _packet(self) -> bytes:
        kind = self._dice.randrange(10)
        if kind == 0:
            return self._dice.randbytes(self._dice.randrange(1, 400))
        real = encode(self._message())
        if kind == 1:
            return real[: self._dice.randrange(1, len(real) + 1)]
        if kind == 2:
            return self._damaged(real)
        if kind < 7:
            return self._wild(real)
        return real

    def _message(self) -> Message:
        number = self._number

        def stream() -> str:
            return f"fuzz {self._dice.randrange(9)}"

        choices = (
            lambda: self._hello(),
            lambda: PlaceCursor(number(), number(), number(), self._dice.random() < 0.5),
            lambda: CloseCursor(number()),
            lambda: Consumed(number(), number(), tuple(number() for _ in range(3 * self._dice.randrange(4)))),
            lambda: GiveBack(number(), number()),
            lambda: Waiting(number()),
            lambda: Goodbye(),
            lambda: Assume(number(), number()),
            lambda: ShardStart(number(), number(), number(), self._dice.randbytes(self._dice.randrange(9))),
            lambda: Pause(stream(), self._dice.random() < 0.5),
            lambda: Resume(stream()),
            lambda: Evict(stream(), self._dice.random() < 0.5),
            lambda: SetLogLevel(self._dice.choice(["debug", "info", "loud", ""])),
            lambda: Trace(number()),
            lambda: Program(self._paths.segment_name("program", f"fuzz{number()}"), number()),
        )
        return self._dice.choice(choices)()

    def _number(self) -> int:
        return self._dice.choice(LARGE) if self._dice.random() < 0.05 else self._dice.choice(SMALL)

    def _damaged(self, packet: bytes) -> bytes:
        damaged = bytearray(packet)
        for _ in range(self._dice.randint(1, 4)):
            at = self._dice.randrange(len(damaged))
            damaged[at : at + self._dice.randrange(2)] = self._dice.randbytes(self._dice.randrange(3))
            if not damaged:
                return b"\xc1"
        return bytes(damaged)

    def _wild(self, packet: bytes) -> bytes:
        """The same message with other values of the same types: it decodes, and says what cannot be."""
        values = msgpack.unpackb(packet)
        for _ in range(self._dice.randint(1, 3)):
            place = self._dice.randrange(len(values))
            if place:
                values[place] = self._other(values[place])
        return msgpack.packb(values)

    def _other(self, value: object) -> object:
        match value:
            case bool():
                return not value
            case int():
                return self._number()
            case str():
                return "".join(self._dice.choices("ab/#\n\0é", k=self._dice.randrange(12)))
            case bytes():
                return self._damaged(value or b"\0")
            case list():
                rows = self._dice.random() < 0.5
                return [
                    [self._number() for _ in range(self._dice.randrange(6))] if rows else self._number()
                    for _ in range(self._dice.randrange(5))
                ]
        return value
