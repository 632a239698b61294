"""Encodes a message as one SOCK_SEQPACKET packet: a msgpack array of the message's number and its fields.

A packet is at most MAX_PACKET_BYTES; between the daemon and its children a longer one travels in a file (Enclosed). A
packet that is longer, truncated, not msgpack, of an unknown number or with a field of another type is a ProtocolError;
fields beyond the known ones are ignored.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import MESSAGE_TYPES, Enclosed, Message
from prefetchd.wire.os_errors import few_descriptors

MAX_PACKET_BYTES = 64 * 1024
MAX_PACKET_FDS = 4
MAX_ENCLOSED_BYTES = 1 << 30

_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_PACKET_FDS * 4)
# As plain numbers: arithmetic on flags is slow, and this is done for every message.
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC)
_CUT, _DESCRIPTORS_LOST = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)


def encode(message: Message, limit_bytes: int = MAX_PACKET_BYTES) -> bytes:
    """Returns the packet of `message`. Raises ProtocolError when it would be longer than `limit_bytes`."""
    fields = _FIELDS[message.number].names
    values = [message.number, *[getattr(message, name) for name in fields]]
    try:
        packet = bytes(msgpack.packb(values, unicode_errors="replace"))
    except OverflowError as error:
        raise ProtocolError(f"a {type(message).__name__} with a number that does not fit: {error}") from None
    if len(packet) > limit_bytes:
        raise ProtocolError(f"a {type(message).__name__} of {len(packet)} bytes; allowed: {limit_bytes} bytes a packet")
    return packet


def decode(packet: bytes, limit_bytes: int = MAX_PACKET_BYTES) -> Message:
    """Returns the message in `packet`. Raises ProtocolError and nothing else."""
    if len(packet) > limit_bytes:
        raise ProtocolError(f"a packet of more than {limit_bytes} bytes")
    try:
        raw = msgpack.unpackb(packet, use_list=False, max_ext_len=0, strict_map_key=True)
    except Exception as error:
        raise ProtocolError(f"a packet of {len(packet)} bytes is not msgpack: {error}") from None
    if type(raw) is not tuple or not raw or type(raw[0]) is not int:
        raise ProtocolError("a packet that is not an array beginning with a message number")
    schema = _FIELDS.get(raw[0])
    if schema is None:
        raise ProtocolError(f"message number {raw[0]} is unknown")
    values = raw[1 : 1 + len(schema.names)]
    if len(values) < schema.required:
        raise ProtocolError(f"{schema.cls.__name__} has {len(values)} fields; it needs {schema.required}")
    for value, check, name in zip(values, schema.checks, schema.names):
        if not check(value):
            raise ProtocolError(f"{schema.cls.__name__}.{name} has a value of the wrong type")
    return schema.cls(*values)


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Sends one message; blocks only if `sock` does. OSError and BlockingIOError are the socket's."""
    send_packet(sock, encode(message), fds)


def send_packet(sock: socket.socket, packet: bytes, fds: Sequence[int] = ()) -> None:
    """Sends what encode() has made, as send() does."""
    if fds:
        socket.send_fds(sock, [packet], list(fds))
    else:
        sock.send(packet)


def enclose(message: Message) -> tuple[Message, list[int]]:
    """Makes a message of any length fit into a packet. Returns `message` as it is; or, when it is too long, what stands
    for it and the descriptor that goes with that, which the caller closes."""
    packet = encode(message, MAX_ENCLOSED_BYTES)
    if len(packet) <= MAX_PACKET_BYTES:
        return message, []
    fd = os.memfd_create("prefetchd-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(packet)
    except BaseException:
        os.close(fd)
        raise
    return Enclosed(len(packet)), [fd]


def disclose(message: Message, fds: list[int]) -> tuple[Message, list[int]]:
    """Returns the message that enclose() was given; other messages as they are. For messages of the daemon's own
    children, or of the daemon to them. Takes over the descriptors of Enclosed. Raises ProtocolError."""
    if not isinstance(message, Enclosed):
        return message, fds
    try:
        if len(fds) != 1 or not 0 < message.packet_bytes <= MAX_ENCLOSED_BYTES:
            raise ProtocolError(f"an enclosed message of {message.packet_bytes} bytes with {len(fds)} descriptors")
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            file.seek(0)
            packet = file.read(message.packet_bytes)
    except OSError as error:
        raise ProtocolError(f"an enclosed message cannot be read: {error}") from None
    finally:
        close_all(fds)
    return decode(packet, MAX_ENCLOSED_BYTES), []


def receive(sock: socket.socket) -> Message | None:
    """Returns the next message, or None at end of file. Blocks only if `sock` does; descriptors are not accepted."""
    packet = sock.recv(MAX_PACKET_BYTES + 1)
    return decode(packet) if packet else None


def receive_with_fds(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """Returns the next message and its descriptors, close-on-exec, which the caller owns; (None, []) at end of file.
    Raises ProtocolError; DescriptorsLostError when this process may have no more descriptors."""
    packet, ancillary, flags, _ = sock.recvmsg(MAX_PACKET_BYTES + 1, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
    fds: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            fds += [int.from_bytes(data[i : i + 4], sys.byteorder) for i in range(0, whole, 4)]
    try:
        if flags & _CUT or (flags & _DESCRIPTORS_LOST and len(fds) >= MAX_PACKET_FDS):
            raise ProtocolError("a packet that was truncated")
        if flags & _DESCRIPTORS_LOST:
            raise DescriptorsLostError(decode(packet), len(fds))
        if not packet and fds:
            raise ProtocolError("an empty packet with descriptors")
        return (decode(packet) if packet else None), fds
    except ProtocolError:
        close_all(fds)
        raise


class NoDescriptorError(ProtocolError):
    """This process may have no more descriptors, so that it cannot take what came with a message: no fault of who sent
    that."""

    def __init__(self) -> None:
        super().__init__(few_descriptors())


class DescriptorsLostError(ProtocolError):
    """Descriptors that came with a message are lost: this process may have no more. `message` is what they came
    with."""

    def __init__(self, message: Message, arrived: int) -> None:
        super().__init__(f"a packet of which {arrived} descriptors arrived, and more were sent: {few_descriptors()}")
        self.message = message


class Descriptors(list[int]):
    """Own the descriptors that came with one message: the end of the block closes those that nobody took over."""

    def take(self) -> list[int]:
        """Return the descriptors, which are the caller's from then on."""
        taken = list(self)
        self.clear()
        return taken

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        close_all(self.take())


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors that came with a message and are not wanted."""
    for fd in fds:
        os.close(fd)


_INT = {int}


def _is_ints(value: Any) -> bool:
    return type(value) is tuple and set(map(type, value)) <= _INT


def _is_rows(value: Any) -> bool:
    return type(value) is tuple and all(map(_is_ints, value))


def _is_blobs(value: Any) -> bool:
    return type(value) is tuple and all(type(item) is bytes for item in value)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "str": lambda value: type(value) is str,
    "bytes": lambda value: type(value) is bytes,
    "bool": lambda value: type(value) is bool,
    "Ints": _is_ints,
    "Rows": _is_rows,
    "Blobs": _is_blobs,
}


@dataclasses.dataclass(frozen=True)
class _Schema:
    cls: type[Message]
    names: tuple[str, ...]
    checks: tuple[Callable[[Any], bool], ...]
    required: int


def _schema(cls: type[Message]) -> _Schema:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    return _Schema(
        cls,
        tuple(field.name for field in fields),
        tuple(_CHECKS[str(field.type)] for field in fields),
        sum(field.default is dataclasses.MISSING for field in fields),
    )


_FIELDS: dict[int, _Schema] = {number: _schema(cls) for number, cls in MESSAGE_TYPES.items()}
