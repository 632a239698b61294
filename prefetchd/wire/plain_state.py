"""Holds a dataset's own state as plain values, for a checkpoint that anybody may have made: reading it runs nothing.

MessagePack. What MessagePack says by itself (None, bool, int of 64 bits, float, text, bytes) is itself; all else is an
array of a letter and its parts:

    l [value ...]                   list            t [value ...]      tuple
    d [[key, value] ...]            dict            o [[key, value] ...]   OrderedDict
    s [value ...]                   set             f [value ...]      frozenset
    q maxlen or None [value ...]    deque           i text             int of more than 64 bits
    T dtype shape bytes             torch tensor    A dtype shape bytes    NumPy array
    G dtype bytes                   NumPy scalar
    c module name state             an object of a class that the dataset allows (`state_classes`): its attributes

Pure: prefetchd.workers.state_values makes values of it.
"""

from __future__ import annotations

from typing import Any

import msgpack

from prefetchd.wire.errors import CallerError

DEPTH_LIMIT = 60
LETTERS = {"l": 1, "t": 1, "d": 1, "o": 1, "s": 1, "f": 1, "q": 2, "i": 1, "T": 3, "A": 3, "G": 2, "c": 3}
"""How many parts follow each letter."""
LONG_INT_DIGITS = 2000

_NESTED = "ltsf"
_PAIRED = "do"


def decode_node(data: bytes) -> Any:
    """Decodes the node that `data` has, and checks all of it. Raises CallerError when it is none."""
    try:
        node = msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise _none(f"no MessagePack: {error}") from None
    _check(node, 0)
    return node


def encode_node(node: Any) -> bytes:
    return bytes(msgpack.packb(node, use_bin_type=True))


def _check(node: Any, depth: int) -> None:
    # All of it is checked here, before a value is made: whoever makes values of the node may trust its shape.
    if depth > DEPTH_LIMIT:
        raise _none(f"it is nested deeper than {DEPTH_LIMIT}")
    if node is None or isinstance(node, (bool, int, float, str, bytes)):
        return
    letter = node[0] if isinstance(node, list) and node else None
    if not isinstance(letter, str) or LETTERS.get(letter) != len(node) - 1:
        raise _none(f"a node {repr(node)[:80]}")
    content = node[-1]
    if letter in _NESTED or letter == "q":
        if letter == "q" and not (node[1] is None or _is_size(node[1])):
            raise _none("a deque without a length")
        for each in _listed(content):
            _check(each, depth + 1)
    elif letter in _PAIRED:
        for pair in _listed(content):
            key, value = _listed(pair, 2)
            _check(key, depth + 1)
            _check(value, depth + 1)
    elif letter == "i":
        digits = content.removeprefix("-") if isinstance(content, str) else ""
        if not digits.isdecimal() or not digits.isascii() or len(digits) > LONG_INT_DIGITS:
            raise _none("an integer that is none")
    elif letter == "c":
        if not all(isinstance(each, str) for each in node[1:3]):
            raise _none("a class without a name")
        _check(content, depth + 1)
    elif not isinstance(node[1], str) or not isinstance(content, bytes):
        raise _none("an array without its bytes")
    elif letter in "TA" and not all(map(_is_size, _listed(node[2]))):
        raise _none("an array without a shape")


def _listed(node: Any, length: int | None = None) -> list[Any]:
    if not isinstance(node, list) or (length is not None and len(node) != length):
        raise _none(f"{repr(node)[:80]} in the place of a list")
    return node


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _none(why: str) -> CallerError:
    return CallerError(f"a dataset's state in a checkpoint is damaged: {why}")
