"""Names the classes of what a worker pickles, so that the trainer finds the very same ones.

pickle names a class by module and qualified name. That is not enough for one that a function has made, or that lies
elsewhere than its name says, such as a namedtuple of a class's body. A fork of the trainer has the trainer's classes at
the trainer's addresses: there such a class is named by its address as well.
"""

from __future__ import annotations

import functools
import gc
import pickle
import sys
import weakref
from types import FunctionType
from typing import Any, TypeAlias

MAIN, LIVING = "main", "class"
HEAP_TYPE = 1 << 9
"""The bit in type.__flags__ of classes made by a class statement or a call. Others are in no danger, and pickle knows
them."""

ClassName: TypeAlias = tuple[Any, ...]
"""(MAIN, qualified name), or (LIVING, module, qualified name, address)."""

_is_fork = False
_known: weakref.WeakKeyDictionary[type, ClassName | None] = weakref.WeakKeyDictionary()


def inherit() -> None:
    """Says that this process is a fork of the trainer, and the gc is frozen: all classes up to now are the trainer's,
    too."""
    global _is_fork
    _is_fork = True


class ClassNamingPickler(pickle.Pickler):
    """A pickler that leaves a ClassName where unpickling by name would find nothing in the trainer, or another
    class."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, type):
            return _name_of(obj)
        # Workers know what __main__ defines only by value (cloudpickle), but the trainer has the original.
        if isinstance(obj, FunctionType) and obj.__module__ == "__main__":
            return (MAIN, obj.__qualname__)
        return None


def _name_of(cls: type) -> ClassName | None:
    if cls not in _known:
        _known[cls] = _find_name(cls)
    return _known[cls]


def _find_name(cls: type) -> ClassName | None:
    if not cls.__flags__ & HEAP_TYPE:
        return None
    module, name = cls.__module__, cls.__qualname__
    is_of_main = module == "__main__"
    if not _is_fork or _found(module, name) is cls or _is_new(cls):
        return (MAIN, name) if is_of_main else None
    return (LIVING, module, name, id(cls))


def _found(module: str, name: str) -> Any:
    """Returns what pickle would find under that name."""
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _is_new(cls: type) -> bool:
    """Returns True for a class that was made since inherit(): the trainer has none like it. Looks through all new
    objects."""
    return any(each is cls for each in gc.get_objects())
