"""Provides `record`: a frozen dataclass with slots whose class is made in a third of the time.

A daemon, a worker and each command define a hundred such classes before they can do anything. dataclasses compiles six
methods for each of them, and that was half of the time that a daemon took to start. Here only `__init__` is compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Does nothing: typing has it from Python 3.11 on, and only type checkers look at it."""
        return lambda decorator: decorator


_T = TypeVar("_T")
_NOT_COPIED = frozenset(["__dict__", "__weakref__"])


@dataclass_transform(frozen_default=True)
def record(cls: type[_T]) -> type[_T]:
    """Makes of `cls` what dataclasses.dataclass(frozen=True, slots=True) would, for a class without a base that has
    fields and without factories of defaults; dataclasses.fields() and replace() take its objects. Makes another
    class."""
    known: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(known)
    names = tuple(field.name for field in fields)
    namespace = {name: value for name, value in vars(known).items() if name not in {*names, *_NOT_COPIED}}
    namespace |= _SHARED | {"__slots__": names, "__qualname__": cls.__qualname__}
    kind: Any = type(cls)
    made = kind(cls.__name__, cls.__bases__, namespace)
    made.__init__ = _init_of(made, fields)
    return made  # type: ignore[no-any-return]


def _init_of(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """Compiles an __init__ that sets each field by its slot: a frozen class lets nobody else set it."""
    values: dict[str, Any] = {}
    heads, lines = [], []
    for field in fields:
        assert field.default_factory is dataclasses.MISSING, field.name
        values[f"_set_{field.name}"] = vars(cls)[field.name].__set__
        heads.append(field.name)
        if field.default is not dataclasses.MISSING:
            values[f"_default_{field.name}"] = field.default
            heads[-1] += f"=_default_{field.name}"
        lines.append(f" _set_{field.name}(self, {field.name})\n")
    found: dict[str, Any] = {}
    exec(f"def __init__(self, {', '.join(heads)}):\n{''.join(lines) or ' pass'}", values, found)
    found["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return found["__init__"]


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__slots__])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Any) -> Any:
    return type(self), _values(self)


_SHARED = {
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__reduce__": _reduce,
}
