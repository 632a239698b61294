"""Find out whether making a sample changes what the program holds.

DataLoader without workers makes samples in the trainer: the loop finds what `__getitem__` has written into the dataset,
and a sample may depend on those before it. A worker is another process, and there are several: nothing of this holds.
So the worker that makes a stream's first sample looks at the program's plain values before and after it.

What counts: numbers, texts, small arrays, and the lengths of containers, of the dataset, the collate_fn and all that
they hold, of their classes, and of globals that their code names. What does not count: generators, which are set before
each sample; what is there for the first time, such as a file handle that is opened lazily; what an open file or archive
of the standard library notes while it is read; and what prefetchd's own datasets note, such as a SampleCache.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from prefetchd.workers.held_objects import held_objects

MOST_OBJECTS = 2_000
MOST_BYTES = 1 << 16
"""Maximum bytes of an array that is compared by its content."""

_CDATA: Any = ctypes.Structure.__mro__[1]
_CONTAINERS: tuple[Any, ...] = (list, dict, set, deque)
_FILES = ("_io", "bz2", "gzip", "lzma", "mmap", "tarfile", "zipfile")
_OURS = ("prefetchd", "prefetchd_client")
_PLAIN = (int, float, complex, bool, str, bytes)


class SampleEffects:
    """Compare what a program holds before and after samples are made. Runs no code of the user's."""

    def __init__(self, roots: Mapping[str, Any], *, with_shared: bool) -> None:
        self._with_shared = with_shared
        self._roots = {name: root for name, root in roots.items() if root is not None}
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Look at what is held now. Takes a few microseconds for each of at most MOST_OBJECTS objects."""
        self._before = self._look()

    def first_write(self, *, puts_back: bool = False) -> str:
        """Return the way to the first value that is not what it was at begin(), such as "dataset.seen"; empty if there
        is none. What is held now is what the next call compares with.

        Memory that processes share counts only without workers: of several workers DataLoader's do not know either who
        writes first. With `puts_back` it is put back to what it was, if something was written, as the trainer makes the
        sample again.
        """
        before, self._before = self._before, self._look()
        for way, value in self._before.items():
            is_counted = self._with_shared or not isinstance(value, _Shared)
            if is_counted and before.get(way) is not None and before[way] != value:
                if puts_back:
                    _put_back(before)
                return way
        return ""

    def _look(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        kinds: set[type] = set()
        functions: list[types.FunctionType] = []
        files: list[str] = []
        ours: set[str] = set()
        for number, (way, value) in enumerate(held_objects(self._roots, numbers=True)):
            if number >= MOST_OBJECTS:
                break
            if files and way.startswith(tuple(files)):
                continue
            if type(value).__module__ in _FILES:
                files.append(f"{way}.")
                continue
            if _is_ours(type(value).__module__):
                ours.add(way)
            elif way.rpartition(".")[0] not in ours:
                found[way] = _compared(value)
            kinds.add(type(value))
            if type(value) is types.FunctionType:
                functions.append(value)
            for name, shared in _class_attributes(type(value)):
                # Until the object has an attribute of that name.
                found.setdefault(f"{way}.{name}", _compared(shared))
        own = {base for kind in kinds for base in _users_classes(kind)}
        for kind in sorted(own, key=lambda each: each.__qualname__):
            functions += [each for each in vars(kind).values() if type(each) is types.FunctionType]
            for name, value in list(vars(kind).items()):
                if name.startswith("__") or type(value) is types.FunctionType:
                    continue
                found[f"{kind.__qualname__}.{name}"] = _compared(value)
        for name, value in _globals_of(functions):
            found.setdefault(f"global {name}", _compared(value))
        return found


def _class_attributes(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of the user's classes that instances of `kind` have, functions left out."""
    for each in _users_classes(kind):
        for name, value in list(vars(each).items()):
            if not name.startswith("__") and type(value) is not types.FunctionType:
                yield name, value


def _put_back(before: Mapping[str, Any]) -> None:
    for value in before.values():
        if isinstance(value, _Shared):
            value.put_back()


def _globals_of(functions: list[types.FunctionType]) -> Iterator[tuple[str, Any]]:
    """Yield the globals of the user's modules that the functions' code names."""
    for function in functions:
        if not _is_users_module(function.__module__):
            continue
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
            for name in code.co_names:
                if name in function.__globals__:
                    yield name, function.__globals__[name]


@functools.lru_cache(maxsize=4096)
def _users_classes(kind: type) -> tuple[type, ...]:
    """Return the user's own classes among the class and its bases."""
    return tuple(each for each in kind.__mro__ if _is_users_module(each.__module__))


def _is_users_module(name: object) -> bool:
    """Return True for modules that are not installed packages, nor Python's own."""
    if not isinstance(name, str) or name.partition(".")[0] in sys.stdlib_module_names:
        return name == "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and "site-packages" not in file and "dist-packages" not in file and not _is_ours(name)


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _OURS


def _compared(value: Any) -> Any:
    """Return what of a value is compared, or None for a value of which nothing is."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    for base in _CONTAINERS:
        if issubclass(kind, base):
            return base.__len__(value)
    if kind is np.ndarray and value.nbytes <= MOST_BYTES and not value.dtype.hasobject:
        return value.tobytes()
    if kind is torch.Tensor and value.is_cpu and value.layout is torch.strided and value.nbytes <= MOST_BYTES:
        content = bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        return _Shared(content, value) if value.is_shared() else content
    if issubclass(kind, _CDATA) and ctypes.sizeof(value) <= MOST_BYTES:
        return _Shared(bytes(memoryview(value).cast("B")), value)
    return None


class _Shared(bytes):
    """What memory holds that processes may share, and the object that it is the memory of."""

    def __new__(cls, content: bytes, memory: Any) -> _Shared:
        made = super().__new__(cls, content)
        made._memory = memory
        return made

    _memory: Any

    def put_back(self) -> None:
        """Write the content into the memory again."""
        if isinstance(self._memory, torch.Tensor):
            former = torch.frombuffer(bytearray(self), dtype=torch.uint8).view(self._memory.dtype)
            with torch.no_grad():
                self._memory.copy_(former.reshape(self._memory.shape))
        else:
            ctypes.memmove(ctypes.addressof(self._memory), bytes(self), len(self))
