"""Notice that the training loop has changed the dataset or collate_fn within an epoch.

DataLoader without workers makes each batch when next() asks for it, and shows such a change at once. The watch is asked
before each next(), so it looks at little: the attributes of the dataset, of objects that it holds, and of the
collate_fn; of a container its length; of small arrays, tensors and shared values their content; and globals that the
dataset's own methods name. What is written into a large array or into an element of a list is not seen before the next
epoch.
"""

from __future__ import annotations

import ctypes
import operator
import os
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from prefetchd_client.fingerprint.code_digest import names_in
from prefetchd_client.fingerprint.code_parts import is_installed

_MOST_OBJECTS = 64
_MOST_ITEMS = 32
_MOST_BYTES = 4096
_CDATA: Any = ctypes.Structure.__mro__[1]
_SIZED = (list, dict, set, deque)
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType)


class LoopWatch:
    """Remember what `roots` hold, by name, and tell what has changed. What `loader` holds is left out: a collate_fn
    may be its method. One thread at a time."""

    def __init__(self, roots: dict[str, Any], loader: object = None) -> None:
        self._spaces = [*_spaces(roots, loader), _Space("environment variable ", os.environ._data)]  # type: ignore[attr-defined]
        self._values = [list(space.values()) for space in self._spaces]
        self._sized = [
            (space.way + name, value)
            for space, values in zip(self._spaces, self._values)
            for name, value in zip(space.names(), values)
            if isinstance(value, _SIZED)
        ]
        self._lengths = [len(value) for _, value in self._sized]
        self._memory = [
            (space.way + name, memory)
            for space, values in zip(self._spaces, self._values)
            for name, value in zip(space.names(), values)
            if (memory := _memory_of(value)) is not None
        ]
        self._contents = [bytes(memory) for _, memory in self._memory]

    def changed(self) -> str:
        """Return the way to something that is not what it was, such as "dataset.scale"; empty if all is. Takes a
        microsecond or two."""
        for space, before in zip(self._spaces, self._values):
            now = list(space.values())
            if len(now) != len(before) or not all(map(operator.is_, now, before)):
                found = _first_change(space, before, now)
                if found:
                    return space.way + (os.fsdecode(found) if isinstance(found, bytes) else found)
        for (way, value), length in zip(self._sized, self._lengths):
            if len(value) != length:
                return way
        for (way, memory), content in zip(self._memory, self._contents):
            if memory != content:
                return way
        return ""


def _memory_of(value: Any) -> memoryview | None:
    """Return the bytes of a small array, tensor or shared value, as they are whenever they are looked at."""
    if type(value) is torch.Tensor and value.is_cpu and value.layout is torch.strided and not value.requires_grad:
        value = value.numpy() if value.dtype != torch.bfloat16 and value.is_contiguous() else None
    elif hasattr(type(value), "get_obj") and type(value).__module__ == "multiprocessing.sharedctypes":
        value = value.get_obj()
    if isinstance(value, np.ndarray):
        if value.nbytes > _MOST_BYTES or value.dtype.hasobject or not value.flags.c_contiguous:
            return None
        value = value.reshape(-1).view(np.uint8) if value.size else None
    elif not isinstance(value, _CDATA):
        return None
    return memoryview(value).cast("B") if value is not None and memoryview(value).nbytes <= _MOST_BYTES else None


class _Space:
    """The attributes of one object, or some globals of a module, after the way to them."""

    def __init__(self, way: str, namespace: dict[str, Any], names: list[str] | None = None) -> None:
        self.way = way
        self._namespace = namespace
        self._names = names

    def names(self) -> list[str]:
        return list(self._namespace) if self._names is None else self._names

    def values(self) -> Iterable[Any]:
        return self._namespace.values() if self._names is None else map(self._namespace.get, self._names)


def _first_change(space: _Space, before: list[Any], now: list[Any]) -> str:
    """Return the name whose value is another one; equal numbers and texts are the same."""
    names = space.names()
    if len(now) != len(before):
        return names[-1] if len(now) > len(before) else "attributes"
    for name, former, value in zip(names, before, now):
        if value is not former and not (type(value) is type(former) and isinstance(value, _ATOMS) and value == former):
            return name
    return ""


def _spaces(roots: dict[str, Any], loader: object) -> Iterator[_Space]:
    """Yield the attributes of the roots and of what they hold, nearest first."""
    coming = deque((name, root) for name, root in roots.items() if root is not None)
    seen = {id(loader)}
    while coming and len(seen) < _MOST_OBJECTS:
        way, value = coming.popleft()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) in (list, tuple):
            coming.extend((f"{way}[{place}]", each) for place, each in zip(range(_MOST_ITEMS), value))
            continue
        if type(value) is types.MethodType:
            coming.append((way, value.__self__))
            continue
        if type(value) is types.FunctionType:
            yield from _globals_of(value)
        try:
            # Past the class's own __getattribute__.
            attributes: Any = object.__getattribute__(value, "__dict__")
        except AttributeError:
            continue
        if type(attributes) is dict:
            yield _Space(f"{way}.", attributes)
            coming.extend((f"{way}.{name}", each) for name, each in attributes.items())
        if not is_installed(type(value)):
            for member in vars(type(value)).values():
                if type(member) is types.FunctionType:
                    yield from _globals_of(member)


def _globals_of(function: types.FunctionType) -> Iterator[_Space]:
    named = {path[0] for path in names_in(function.__code__).globals if path[0] in function.__globals__}
    if named:
        yield _Space("global ", function.__globals__, sorted(named))
