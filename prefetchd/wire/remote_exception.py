"""Carries an exception of the user's code from a worker to the trainer, as opaque bytes for the daemon.

The worker encodes; the trainer rebuilds the exception without calling its constructor, so that classes whose
constructor takes other arguments survive. Nothing here unpickles: that is the trainer's part.
"""

from __future__ import annotations

import dataclasses

import msgpack

from prefetchd.wire.errors import ProtocolError

TEXT_LIMIT = 16_000
PICKLE_LIMIT_BYTES = 16_000
ENCODED_LIMIT_BYTES = 52_000
"""The most that encode_exception() gives: what is longer was not made by it, and fits into no packet beside its
message."""


@dataclasses.dataclass(frozen=True)
class RemoteException:
    """An exception of a worker.

    `pickled` is a pickle of (class, args, attributes), or empty when that could not be made; `location` says in
    words which sample or part of the program raised.
    """

    type_name: str
    message: str
    traceback: str
    location: str
    pickled: bytes = b""


def encode_exception(exception: RemoteException) -> bytes:
    """Encodes an exception in at most ENCODED_LIMIT_BYTES: long texts lose their middle, a long pickle is left out."""
    pickled = exception.pickled if len(exception.pickled) <= PICKLE_LIMIT_BYTES else b""
    texts = (exception.type_name, exception.message, exception.traceback, exception.location)
    return bytes(msgpack.packb([*map(_shortened, texts), pickled], unicode_errors="replace"))


def decode_exception(data: bytes) -> RemoteException:
    """Decodes an exception. Raises ProtocolError when it is damaged or too long."""
    if len(data) > ENCODED_LIMIT_BYTES:
        raise ProtocolError(f"a worker's exception of {len(data)} bytes; allowed: {ENCODED_LIMIT_BYTES}")
    try:
        fields = msgpack.unpackb(data)
        if type(fields) is not list or [type(field) for field in fields] != [str, str, str, str, bytes]:
            raise ValueError("not four texts and a pickle")
        return RemoteException(*fields)
    except Exception as error:
        raise ProtocolError(f"a worker's exception is damaged: {error}") from None


def summarize_exception(data: bytes) -> str:
    """Returns what encode_exception() has made in one line, for files and logs: where, the type, and the message."""
    try:
        remote = decode_exception(data)
    except ProtocolError as damaged:
        return str(damaged)
    return f"{remote.location}: {remote.type_name}: {remote.message}"


def _shortened(text: str) -> str:
    # At most TEXT_LIMIT // 2 bytes: four such texts and the pickle stay within one packet.
    if len(text.encode("utf-8", "replace")) <= TEXT_LIMIT // 2:
        return text
    limit = TEXT_LIMIT // 8 if not text.isascii() else TEXT_LIMIT // 2 - 100
    return f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"
