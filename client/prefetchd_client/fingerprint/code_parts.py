"""This module says what stands for functions, classes and modules in a fingerprint.

Code of the user counts by its bytecode and all that it reaches; code of installed packages by its name and the
package's version. Functions that a package made at run time (decorators, factories) count by their closure as well.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

from prefetchd_client.fingerprint.code_digest import Path, code_digest, names_in
from prefetchd_client.fingerprint.module_sources import (
    Origin,
    function_origin,
    imported_names,
    module_origin,
    name_origin,
    package_of,
    package_versions,
    user_sources,
)

Parts: TypeAlias = tuple[str, Sequence[object]]
"""A tag, and the values that the walk digests in an object's place."""

_HEAP_TYPE = 1 << 9
_DESCRIPTIVE = frozenset(
    [
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__classcell__",
        "__classdictcell__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__slotnames__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    ]
)


def function_parts(function: types.FunctionType) -> Parts:
    """Returns a function's code, defaults, closure and attributes; for the user's functions also the globals and
    modules that they reach."""
    code = function.__code__
    module = function.__globals__.get("__name__")
    cells = map(cell_value, function.__closure__ or ())
    own = [code_digest(code), function.__defaults__, function.__kwdefaults__, *cells, attributes(function)]
    if function_origin(function) is Origin.INSTALLED:
        name = getattr(code, "co_qualname", code.co_name)
        return "installed function", [module, name, package_of(str(module)), *own]
    names = names_in(code)
    reached = dict(_reached(names.globals, function.__globals__))
    package = str(function.__globals__.get("__package__") or "")
    imported = [name for statement in names.imports for name in imported_names(statement, package)]
    parts = [*own, tuple(reached), *reached.values(), user_sources(imported), _source_of(module)]
    # Only if there are some: the fingerprints of other programs stay what they were.
    if variables := [(name, os.environ[name]) for name in names.variables if name in os.environ]:
        parts.append(variables)
    return "function", parts


def class_parts(cls: type) -> Parts:
    """Returns bases and members of a class of the user, and the name of another class that can be imported."""
    module = cls.__module__
    if not cls.__flags__ & _HEAP_TYPE or (is_installed(cls) and _is_importable(cls)):
        return "installed class", [module, cls.__qualname__, package_of(str(module))]
    namespace = type.__getattribute__(cls, "__dict__")
    names = tuple(sorted(name for name in namespace if name not in _DESCRIPTIVE))
    members = [namespace[name] for name in names]
    return "class", [cls.__name__, type(cls), cls.__bases__, names, *members, _source_of(module)]


def module_parts(module: types.ModuleType) -> Parts:
    """Returns what stands for a module as a value: the user's by source, a package by version, `__main__` by nothing
    but being it."""
    name = module.__name__
    origin = module_origin(module)
    if origin is Origin.USER:
        return "user module", [name, *user_sources([name])]
    if origin is Origin.INSTALLED:
        package = package_of(name)
        return "package", [name, package_versions(module) if package is module else package]
    return origin.value, [name if origin is Origin.UNKNOWN else ""]


def builtin_parts(function: types.BuiltinFunctionType) -> Parts:
    """Returns the name of a function written in C, and for a method also the object that it is bound to."""
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        return "builtin", [function.__name__, *home(function)]
    return "builtin method", [function.__name__, owner]


def cell_value(cell: types.CellType) -> object:
    """Returns the value of a closure's variable, which may not have been assigned yet."""
    try:
        return ("cell", cell.cell_contents)
    except ValueError:
        return "empty"


def attributes(value: object) -> dict[str, object]:
    """Returns what was set on a function, less what describes it."""
    own = getattr(value, "__dict__", {})
    return {name: own[name] for name in own if name == "__wrapped__" or not _is_dunder(name)}


def home(value: object) -> Sequence[object]:
    """Returns the name of the module that something known by name belongs to, and the module."""
    name = getattr(value, "__module__", None)
    return [name, sys.modules.get(name)] if isinstance(name, str) else [None, None]


def is_installed(cls: type) -> bool:
    """Returns True for classes of installed packages and of Python itself."""
    return isinstance(cls.__module__, str) and name_origin(cls.__module__) is Origin.INSTALLED


def _reached(paths: Sequence[Path], namespace: dict[str, Any]) -> Iterator[tuple[Path, object]]:
    """Yields the globals that code names and, of the user's own modules, the attributes that it takes: they may have
    been set since the module was read. Names that are not there are builtins, or the function's own error."""
    for path in paths:
        if path[0] not in namespace:
            continue
        value = namespace[path[0]]
        yield path[:1], value
        for end in range(2, len(path) + 1):
            inner = _open_namespace(value)
            if path[end - 1] not in inner:
                break
            value = inner[path[end - 1]]
            yield path[:end], value


def _open_namespace(value: object) -> dict[str, Any]:
    # Packages without __init__.py are of unknown origin, and may hold the user's modules.
    if not issubclass(type(value), types.ModuleType):
        return {}
    module = cast(types.ModuleType, value)
    return {} if module_origin(module) is Origin.INSTALLED else vars(module)


def _source_of(module: object) -> object:
    return user_sources([module]) if isinstance(module, str) else ()


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_importable(cls: type) -> bool:
    found: object = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls
