"""find_named finds the trainer's class for the name that a worker gave it (ClassName in
prefetchd.workers.class_names)."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from prefetchd.wire.errors import ProtocolError, RemoteError

KINDS = ("main", "class")

_found: weakref.WeakValueDictionary[tuple[str, str, int], type] = weakref.WeakValueDictionary()


def find_named(name: tuple[Any, ...]) -> Any:
    """Returns the object that the worker named. Raises RemoteError when it is not here, or cannot be told from
    others."""
    kind, *rest = name
    if kind == "main":
        return _of_main(*rest)
    if kind != "class":
        raise ProtocolError(f"a worker names a class by {kind!r}; allowed: {', '.join(KINDS)}")
    return _living(*rest)


def _of_main(qualified_name: str) -> Any:
    """Returns what this process's __main__ defines under that name."""
    try:
        return functools.reduce(getattr, qualified_name.split("."), sys.modules["__main__"])
    except AttributeError:
        raise RemoteError(
            f"a batch holds an instance of {qualified_name}, which __main__ does not define here; "
            "define it at the top level of the script or in a module"
        ) from None


def _living(module: str, qualified_name: str, address: int) -> type:
    """Returns the class that is at `address`. A batch that an earlier run has left was made by another process, with
    other addresses: then it is the only class of that name."""
    key = (module, qualified_name, address)
    cls = _found.get(key)
    if cls is not None:
        return cls
    named = [each for each in _all_classes() if (each.__module__, each.__qualname__) == (module, qualified_name)]
    for each in named:
        if id(each) == address:
            _found[key] = each
            return each
    if len(named) == 1:
        return named[0]
    raise RemoteError(
        f"a batch holds an instance of {module}.{qualified_name}, of which {len(named)} are here and none is the "
        "worker's; define it at the top level of a module"
    )


def _all_classes() -> Iterator[type]:
    seen: set[type] = set()
    ahead: list[type] = [object]
    while ahead:
        below: list[type] = type.__subclasses__(ahead.pop())
        for cls in below:
            if cls not in seen:
                seen.add(cls)
                ahead.append(cls)
                yield cls
