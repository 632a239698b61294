"""Finds the descriptors that the program's own objects hold, without running any code of the user's.

All objects are looked at in order of their distance from the program, many at once, and no more than MOST_OBJECTS: a
fork of a trainer does this before its first batch, and only where there is a descriptor to be decided about.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any

MOST_OBJECTS = 20_000
MOST_ELEMENTS = 1000
"""The length from which on only the first elements of a container are looked at: it is a table of data."""
AT_ONCE = 50

# What leads from a dataset to all that the process has imported.
_NOT_ENTERED = (type, types.ModuleType, types.CodeType, types.FrameType)
_CONTAINERS = frozenset([list, tuple, set, frozenset, dict])
_HAS_GC = 1 << 14
"""Py_TPFLAGS_HAVE_GC."""

_connection: Any = importlib.import_module("multiprocessing.connection")


def own_handles(parts: Iterable[object], among: Collection[int]) -> set[int]:
    """Returns those of `among` that objects reached from `parts` hold: descriptors of sockets, pipes, files. Modules,
    classes and what functions find in their modules are not gone into, nor more than the first elements of long
    containers."""
    wanted, found = set(among), set[int]()
    filenos = _PerType(_fileno_of)
    matters = _PerType(lambda kind: filenos[kind] is not None or _is_entered(kind))
    seen: set[int] = set()
    # Kept: another object must not come to have the number of one that was seen.
    level: list[object] = [tuple(parts)]
    while level and wanted - found and len(seen) < MOST_OBJECTS:
        following: list[object] = []
        for at in range(0, len(level), AT_ONCE):
            fresh = {id(each): each for each in _held_by(level[at : at + AT_ONCE]) if matters[type(each)]}
            new = fresh.keys() - seen
            seen |= new
            objects = [fresh[number] for number in new]
            for kind in set(map(type, objects)):
                if filenos[kind] is not None:
                    found |= _descriptors_of((each for each in objects if type(each) is kind), filenos[kind])
            following += objects
            if len(seen) >= MOST_OBJECTS:
                break
        level = following
    return found & wanted


class _PerType(dict[type, Any]):
    """A cache of what `find` says of a type."""

    def __init__(self, find: Callable[[type], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, kind: type) -> Any:
        self[kind] = found = self._find(kind)
        return found


def _is_entered(kind: type) -> bool:
    # Of the type: isinstance() would ask the object what it is, and that may be the user's code.
    return bool(kind.__flags__ & _HAS_GC) and not issubclass(kind, _NOT_ENTERED)


def _fileno_of(kind: type) -> Callable[[Any], int] | None:
    """Returns what gives the descriptor of an object of this type, and is neither the user's nor calls what may be: of
    streams on top of others the lowest one is asked, which they hold."""
    for base in kind.__mro__:
        fileno = base.__dict__.get("fileno")
        if isinstance(fileno, types.MethodDescriptorType) and (
            base is io.FileIO or base.__module__ not in ("_io", "io")
        ):
            return fileno
        if base is _connection._ConnectionBase:
            return base.__dict__["fileno"]  # type: ignore[no-any-return]
    return None


def _descriptors_of(objects: Iterable[object], fileno: Callable[[Any], int]) -> set[int]:
    found = set()
    for each in objects:
        # A closed one raises.
        with contextlib.suppress(Exception):
            found.add(fileno(each))
    return found


def _held_by(objects: list[object]) -> list[object]:
    """Lists what these objects refer to."""
    whole: list[object] = []
    held: list[object] = []
    for each in objects:
        kind = type(each)
        if kind is types.FunctionType:
            held += (each.__closure__, each.__defaults__, each.__kwdefaults__, each.__dict__)  # type: ignore[attr-defined]
        elif kind in _CONTAINERS and len(each) > MOST_ELEMENTS:  # type: ignore[arg-type]
            held += _first_few(each)
        else:
            whole.append(each)
    return held + gc.get_referents(*whole)


def _first_few(container: Any) -> list[object]:
    values = container.values() if type(container) is dict else container
    return [value for value, _ in zip(values, range(MOST_ELEMENTS))]
