"""Defines what a sampler keeps from one pass to the next, beside its generators: the epoch that set_epoch() was called
with, and plain attributes that it changes itself, such as a count of its passes. Planner and client agree on both."""

from __future__ import annotations

from typing import Any

import msgpack

from prefetchd.wire.errors import ProtocolError

NO_EPOCH = -1

_PLAIN = (int, float, bool, str, type(None))
_LONGEST_TEXT = 200


def parts_of(sampler: Any) -> list[Any]:
    """Returns `sampler` and what it is made of, by the names that torch's samplers and those made after them use."""
    found: list[Any] = []
    waiting = [sampler]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is known for known in found):
            found.append(each)
            waiting += [getattr(each, name, None) for name in ("batch_sampler", "sampler")]
    return found


def epoch_holders(sampler: Any) -> list[Any]:
    """Returns the parts on which set_epoch() can be called and whose `epoch` is the number that it was called with."""
    return [
        each
        for each in parts_of(sampler)
        if callable(getattr(each, "set_epoch", None)) and type(getattr(each, "epoch", None)) is int
    ]


def pack_attributes(sampler: Any) -> bytes:
    """Return the numbers and short texts among the attributes of the sampler's parts. torch's own parts keep nothing of
    their passes and are left out, as is an epoch that set_epoch() decides."""
    holders = epoch_holders(sampler)
    found = []
    for number, part in enumerate(parts_of(sampler)):
        if type(part).__module__.startswith("torch."):
            continue
        for name, value in _attributes_of(part).items():
            is_epoch = name == "epoch" and any(part is each for each in holders)
            if _is_plain(value) and not is_epoch:
                found.append((number, name, value))
    return bytes(msgpack.packb(found)) if found else b""


def set_attributes(sampler: Any, packed: bytes) -> None:
    """Set plain attributes of the sampler's parts to what pack_attributes() has found in a sampler like it. Raises
    ProtocolError."""
    parts = parts_of(sampler)
    for (number, name), value in unpack_attributes(packed).items():
        own = _attributes_of(parts[number]) if number < len(parts) else {}
        if name in own and type(own[name]) in _PLAIN:
            vars(parts[number])[name] = value


def unpack_attributes(packed: bytes) -> dict[tuple[int, str], Any]:
    """Return the values by (number of the part, name). Raises ProtocolError."""
    try:
        return {(number, name): value for number, name, value in msgpack.unpackb(packed)} if packed else {}
    except Exception as error:
        raise ProtocolError(f"a sampler's attributes of {len(packed)} bytes: {error}") from None


def _is_plain(value: Any) -> bool:
    """Return True for what travels: numbers that msgpack knows, and short texts."""
    if type(value) is str:
        return len(value) <= _LONGEST_TEXT
    return type(value) in _PLAIN and (type(value) is not int or abs(value) < 1 << 63)


def _attributes_of(part: Any) -> dict[str, Any]:
    try:
        return dict(object.__getattribute__(part, "__dict__"))
    except AttributeError:
        return {}
