"""Lists what a program's objects hold, without running any code of the user's."""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

MOST_OBJECTS = 20_000
"""How many objects are looked at: those that are near first."""
MOST_ITEMS = 1_000
"""The length from which on a list, tuple or dict is not looked into: it is a table of data, and no configuration."""

_NUMBERS = (int, float, complex)
_SIMPLE = (*_NUMBERS, type(None), type, types.ModuleType)
_WHOLE = (str, bytes, bytearray, np.ndarray, torch.Tensor)
_ITEM_BYTES = 64
_SIZED: dict[type, Any] = {list: list.__len__, tuple: tuple.__len__, dict: dict.__len__, set: set.__len__}
_SIZED |= dict.fromkeys((str, bytes, bytearray, frozenset), lambda _: 0)


def held_objects(roots: Mapping[str, Any], *, numbers: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields each object that can be reached from `roots`, by name, with the shortest way to it; types and modules left
    out, and numbers unless they are asked for. What arrays and long containers hold is not looked into."""
    coming: deque[tuple[str, Any]] = deque(roots.items())
    seen: dict[int, Any] = {}
    while coming and len(seen) < MOST_OBJECTS:
        way, found = coming.popleft()
        # By its type: isinstance() would ask the object what it is, and that may be the user's code.
        if issubclass(type(found), _SIMPLE):
            if numbers and issubclass(type(found), _NUMBERS):
                yield way, found
            continue
        if id(found) in seen:
            continue
        # Kept: another object must not come to have its number.
        seen[id(found)] = found
        yield way, found
        if not issubclass(type(found), _WHOLE):
            coming.extend(_parts(way, found))


def copy_bytes(roots: Mapping[str, Any], most: int) -> int:
    """Estimates the memory that a deep copy of `roots` would take; no more is looked at when that is `most` or more."""
    total = 0
    for number, (_, found) in enumerate(held_objects(roots)):
        kind = type(found)
        if issubclass(kind, np.ndarray):
            total += np.ndarray.nbytes.__get__(found)
        elif issubclass(kind, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                total += found.nbytes
        else:
            total += object.__sizeof__(found) if kind not in _SIZED else sys.getsizeof(found)
            length = _SIZED[kind](found) if kind in _SIZED else 0
            total += _ITEM_BYTES * length if length > MOST_ITEMS else 0
        if total >= most or number + 1 >= MOST_OBJECTS:
            return most
    return total


def _parts(way: str, found: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object is made of, without running any code of the user's."""
    # The types' own methods are called, never the object's: a subclass may have overridden them.
    kind = type(found)
    if kind is functools.partial:
        yield from ((f"{way}.func", found.func), (f"{way}.args", found.args), (f"{way}.keywords", found.keywords))
    elif kind is types.MethodType:
        yield from ((f"{way}.self", found.__self__), (f"{way}.func", found.__func__))
    elif kind is types.FunctionType:
        yield f"{way}.defaults", found.__defaults__
        for name, cell in zip(found.__code__.co_freevars, found.__closure__ or ()):
            try:
                yield f"{way}.{name}", cell.cell_contents
            except ValueError:
                continue
    elif issubclass(kind, dict):
        if dict.__len__(found) <= MOST_ITEMS:
            yield from ((f"{way}[{key!r}]", dict.__getitem__(found, key)) for key in dict.keys(found) if _is_name(key))
    elif issubclass(kind, (list, tuple)):
        base: Any = list if issubclass(kind, list) else tuple
        if base.__len__(found) <= MOST_ITEMS:
            yield from ((f"{way}[{place}]", each) for place, each in enumerate(base.__iter__(found)))
    yield from _attributes(way, found, kind)


def _attributes(way: str, found: Any, kind: type) -> Iterator[tuple[str, Any]]:
    try:
        names: Any = object.__getattribute__(found, "__dict__")
    except AttributeError:
        names = None
    if type(names) is dict:
        yield from ((f"{way}.{name}", value) for name, value in list(names.items()))
    for each in kind.__mro__:
        slots: Sequence[str] = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = each.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield f"{way}.{name}", member.__get__(found)
                except AttributeError:
                    continue


def _is_name(key: Any) -> bool:
    """Returns True for keys whose text is the same in every process."""
    return type(key) in (str, int, bytes, bool)
