"""Copies of a world, and what tells two worlds apart.

A world is full of functions that refer to it, which pickle refuses; here they travel as their code and what they
close over. Numbers that only grow (generations of claims, tasks) are told apart by their order alone: worlds that
differ in nothing else behave alike.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
import types
from collections import deque
from typing import Any

FIRST_GENERATION = 100_000
FIRST_TASK = 1_000_000

# What decides nothing: counts, texts, times, and what never changes.
_IGNORED = {
    "_next_generation",
    "_next_task",
    "_next_worker",
    "counters",
    "deaths",
    "hello",
    "idle_since_s",
    "registry",
    "row_s",
    "schedule",
    "spec",
    "specs",
    "yields",
}
_PLAIN = (int, str, bytes, bool, float, type(None))
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_SEEN = "seen"
_field_names: dict[type, list[str]] = {}
_codes: dict[tuple[str, str, int], types.CodeType] = {}


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and "<" in obj.__qualname__:
            key = (obj.__module__, obj.__qualname__, obj.__code__.co_firstlineno)
            _codes[key] = obj.__code__
            cells = obj.__closure__ or ()
            contents = tuple(cell.cell_contents for cell in cells)
            return _new_function, (key, len(cells)), contents, None, None, _close_over
        return NotImplemented


def _new_function(key: tuple[str, str, int], cells: int) -> types.FunctionType:
    module = __import__(key[0], fromlist=["_"])
    return types.FunctionType(_codes[key], vars(module), closure=tuple(types.CellType() for _ in range(cells)))


def _close_over(function: types.FunctionType, contents: tuple[Any, ...]) -> None:
    for cell, content in zip(function.__closure__ or (), contents):
        cell.cell_contents = content


def freeze(world: Any) -> bytes:
    """A copy that thaw() makes a world of again, as often as wanted, in this process."""
    target = io.BytesIO()
    _Pickler(target, 5).dump(world)
    return target.getvalue()


def thaw(frozen: bytes) -> Any:
    return pickle.loads(frozen)


def identity(world: Any) -> int:
    """Equal for worlds that behave alike."""
    seen: dict[int, int] = {}
    found: list[Any] = []
    say = found.append

    def note(part: Any) -> None:
        kind = type(part)
        if kind in _PLAIN:
            say(part)
        elif isinstance(part, tuple):
            say(len(part))
            for each in part:
                note(each)
        elif id(part) in seen:
            say(_SEEN)
            say(seen[id(part)])
        elif kind is dict:
            seen[id(part)] = len(seen)
            say(len(part))
            for key, value in part.items():
                note(key)
                note(value)
        elif kind in (list, deque):
            seen[id(part)] = len(seen)
            say(len(part))
            for each in part:
                note(each)
        elif kind in (set, frozenset):
            say(len(part))
            for each in sorted(part, key=repr):
                note(each)
        elif isinstance(part, enum.Enum):
            say(part.name)
        elif kind not in _FUNCTIONS:
            seen[id(part)] = len(seen)
            say(kind.__name__)
            for name in _names(part):
                note(getattr(part, name))

    note(world)
    growing = {part for part in found if type(part) is int and part >= FIRST_GENERATION}
    ranks = {number: (_SEEN, rank) for rank, number in enumerate(sorted(growing))}
    return hash(tuple([ranks.get(part, part) if type(part) is int else part for part in found]))


def _names(part: Any) -> list[str]:
    """What there is to tell of it."""
    kind = type(part)
    if not dataclasses.is_dataclass(kind):
        return [name for name in vars(part) if name not in _IGNORED]
    if kind not in _field_names:
        _field_names[kind] = [field.name for field in dataclasses.fields(kind) if field.name not in _IGNORED]
    return _field_names[kind]
