"""Name an object by the way that leads to it, such as `dataset.schedule.epoch`, for messages to users."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping

from prefetchd_client.fingerprint.code_digest import names_in
from prefetchd_client.fingerprint.code_parts import is_installed
from prefetchd_client.fingerprint.live_state import Check, LiveSearch, check_for

_MOST_OBJECTS = 20_000
_MOST_NEAR = 1_000
_MOST_ELEMENTS = 1000
"""Elements of one container that are looked at: a longer one is a table of data."""
_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType)


def path_to(parts: Mapping[str, object], target: object) -> str:
    """Return the shortest path from one of the named parts to `target`, or the parts' names where none is found among
    the first objects. Runs no code of the user's."""
    for path, value in _nearest_first(parts, _MOST_OBJECTS):
        if value is target:
            return path
    return " or ".join(name for name, part in parts.items() if part is not None)


def near_live_state(parts: Mapping[str, object]) -> str:
    """Return live state that is found near the named parts, as "dataset.epoch is a shared value"; empty if there is
    none among the first objects. Takes a millisecond or two at most. Runs no code of the user's."""
    search = LiveSearch()
    checks: dict[type, Check | None] = {}
    for path, value in _nearest_first(parts, _MOST_NEAR):
        kind = type(value)
        if kind not in checks:
            checks[kind] = check_for(kind)
        check = checks[kind]
        if check is not None and search.is_live(check, value):
            return f"{path} is {search.found[-1][1]}"
    return ""


def _nearest_first(parts: Mapping[str, object], most: int) -> Iterator[tuple[str, object]]:
    """Yield up to `most` objects that the parts hold, each after its path and once."""
    waiting = deque(parts.items())
    seen: set[int] = set()
    while waiting and len(seen) < most:
        path, value = waiting.popleft()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        waiting.extend((path + step, each) for step, each in _steps_from(value))


def _steps_from(value: object) -> Iterator[tuple[str, object]]:
    """Yield how each object that `value` holds is written after the name of `value`, and the object."""
    kind = type(value)
    if kind is dict:
        for _, (key, each) in zip(range(_MOST_ELEMENTS), value.items()):  # type: ignore[attr-defined]
            yield f"[{key!r}]" if isinstance(key, (str, int)) else "[...]", each
    elif kind in (list, tuple):
        for place, each in zip(range(_MOST_ELEMENTS), value):  # type: ignore[call-overload]
            yield f"[{place}]", each
    elif kind is types.FunctionType:
        yield from _steps_from_function(value)  # type: ignore[arg-type]
    elif kind is types.MethodType:
        yield ".__self__", value.__self__  # type: ignore[attr-defined]
    elif kind is functools.partial:
        yield ".func", value.func  # type: ignore[attr-defined]
        yield ".args", value.args  # type: ignore[attr-defined]
        yield ".keywords", value.keywords  # type: ignore[attr-defined]
    else:
        yield from _attributes_of(value)


def _steps_from_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:
            continue
    for path in names_in(function.__code__).globals:
        if path[0] in function.__globals__:
            yield f" (global {path[0]})", function.__globals__[path[0]]


def _attributes_of(value: object) -> Iterator[tuple[str, object]]:
    try:
        # Past the class's own __getattribute__.
        fields: dict[str, object] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        fields = {}
    for name, each in list(fields.items()):
        yield f".{name}", each
    for cls in type(value).__mro__:
        if is_installed(cls):
            continue
        namespace = type.__getattribute__(cls, "__dict__")
        for name in namespace.get("__slots__", ()) if isinstance(namespace.get("__slots__"), (tuple, list)) else ():
            slot = namespace.get(name)
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    yield f".{name}", slot.__get__(value)
                except AttributeError:
                    continue
        for name, member in list(namespace.items()):
            if type(member) is types.FunctionType or not name.startswith("__"):
                yield f".{name}", member
