"""This module says what stands for one object in a fingerprint: a tag and the values that the walk digests in its
place.

Objects are taken apart as pickle does it, by __reduce_ex__, save for what pickles by name, by address or not at all. No
__eq__, __hash__ or __repr__ of the user runs.
"""

from __future__ import annotations

import copyreg
import ctypes
import enum
import itertools
import logging
import os
import pathlib
import random
import re
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from prefetchd_client.fingerprint import array_digest
from prefetchd_client.fingerprint.code_digest import code_digest
from prefetchd_client.fingerprint.code_parts import (
    Parts,
    attributes,
    builtin_parts,
    cell_value,
    class_parts,
    function_parts,
    home,
    is_installed,
    module_parts,
)
from prefetchd_client.fingerprint.module_sources import UserSource, source_values


class Rule(NamedTuple):
    """Says how the instances of one class are taken apart. Two equal leaves are alike; other objects are recognised by
    identity when they are met again."""

    parts: Callable[[Any], Parts]
    is_leaf: bool = False


def rule_for(cls: type) -> Rule:
    """Returns the rule of the nearest base class that has one."""
    for base in cls.__mro__:
        rule = _RULES.get(id(base))
        if rule is not None:
            return rule if base is cls else _with_class(rule)
    return _REDUCE


def _with_class(rule: Rule) -> Rule:
    def parts(value: Any) -> Parts:
        tag, values = rule.parts(value)
        return tag, [type(value), *values]

    return Rule(parts, rule.is_leaf)


def _reduced(value: Any) -> Parts:
    """Takes an object apart as pickle does: by copyreg, else __reduce_ex__(4)."""
    ambient = _ambient_name(value)
    if ambient is not None:
        return "ambient", [ambient]
    cls = type(value)
    own = getattr(cls, "__prefetchd_fingerprint__", None)
    if own is not None:
        return "own", [cls, own(value)]
    try:
        reduce = copyreg.dispatch_table.get(cls)
        reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            return "name", [cls, reduced, *home(value), attributes(value)]
        call, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
        listed = list(items) if items is not None else None
        paired = list(itertools.chain.from_iterable(pairs)) if pairs is not None else None
    except Exception:
        return _refused(value)
    return "object", [call, len(arguments), *arguments, state, listed, paired, setter]


def _refused(value: object) -> Parts:
    """Returns the type of what does not let itself be pickled (locks, sockets, open files, generators), and of an
    object of a user's class also its attributes."""
    cls = type(value)
    try:
        # Past the class's own __getattribute__, which may be what refused.
        fields: dict[str, object] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        fields = {}
    if cls.__module__ == "multiprocessing.sharedctypes":
        return "shared value", [cls, fields.get("_obj")]
    return "refused", [cls, None if is_installed(cls) else fields]


def _ambient_name(value: object) -> str | None:
    """Names state that belongs to the process and not to the program, else returns None. Workers seed the generators
    themselves."""
    if value is getattr(random, "_inst", None):
        return "random"
    if value is getattr(np.random.mtrand, "_rand", None):
        return "numpy.random"
    if value is os.environ or value is os.environb:
        return "environ"
    return None


def _array(value: np.ndarray[Any, np.dtype[Any]]) -> Parts:
    if type(value) is np.ndarray or isinstance(value, np.memmap):
        return "array", array_digest.array_values(value)
    return _reduced(value)


def _dtype(value: np.dtype[Any]) -> Parts:
    simple = array_digest.dtype_values(value)
    return ("dtype", simple) if simple is not None else _reduced(value)


def _tensor(value: torch.Tensor) -> Parts:
    dense = array_digest.tensor_values(value)
    return ("tensor", dense) if dense is not None else _reduced(value)


def _property(value: property) -> Parts:
    return "property", [value.fget, value.fset, value.fdel, attributes(value)]


def _memoryview(value: memoryview) -> Parts:
    try:
        return "memoryview", [value.format, value.shape, value.tobytes()]
    except ValueError:
        return "memoryview", ["released"]


def _type_only(value: object) -> Parts:
    return "type", [type(value)]


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CDATA = ctypes.Structure.__mro__[1]

_REDUCE = Rule(_reduced)
_RULES: dict[int, Rule] = {
    id(cls): rule
    for cls, rule in (
        (types.FunctionType, Rule(function_parts)),
        (types.BuiltinFunctionType, Rule(builtin_parts)),
        (types.MethodType, Rule(lambda value: ("method", [value.__func__, value.__self__]), is_leaf=True)),
        (types.MethodWrapperType, Rule(lambda value: ("method", [value.__name__, value.__self__]), is_leaf=True)),
        *(
            (kind, Rule(lambda value: ("descriptor", [value.__objclass__, value.__name__])))
            for kind in (
                types.WrapperDescriptorType,
                types.MethodDescriptorType,
                types.ClassMethodDescriptorType,
                types.GetSetDescriptorType,
                types.MemberDescriptorType,
            )
        ),
        (types.CodeType, Rule(lambda value: ("code", [code_digest(value)]), is_leaf=True)),
        (types.CellType, Rule(lambda value: ("cell", [cell_value(value)]))),
        (types.ModuleType, Rule(module_parts)),
        (UserSource, Rule(lambda value: ("source", source_values(value)))),
        (type, Rule(class_parts)),
        (staticmethod, Rule(lambda value: ("staticmethod", [value.__func__]))),
        (classmethod, Rule(lambda value: ("classmethod", [value.__func__]))),
        (property, Rule(_property)),
        (types.MappingProxyType, Rule(lambda value: ("mappingproxy", [dict(value)]))),
        *((kind, Rule(lambda value: ("view", [type(value).__name__, list(value)]))) for kind in _VIEWS),
        (bytearray, Rule(lambda value: ("bytearray", [bytes(value)]))),
        (memoryview, Rule(_memoryview)),
        (range, Rule(lambda value: ("range", [value.start, value.stop, value.step]), is_leaf=True)),
        (slice, Rule(lambda value: ("slice", [value.start, value.stop, value.step]), is_leaf=True)),
        (re.Pattern, Rule(lambda value: ("pattern", [value.pattern, value.flags]), is_leaf=True)),
        (pathlib.PurePath, Rule(lambda value: ("path", [pathlib.PurePath.__str__(value)]), is_leaf=True)),
        (enum.Enum, Rule(lambda value: ("enum", [value._name_, value._value_]))),
        (logging.Logger, Rule(lambda value: ("logger", [value.name]))),
        *(
            (kind, Rule(_type_only))
            for kind in (
                weakref.ReferenceType,
                weakref.WeakSet,
                weakref.WeakKeyDictionary,
                weakref.WeakValueDictionary,
                ctypes._Pointer,
            )
        ),
        (_CDATA, Rule(lambda value: ("ctypes", [type(value), bytes(memoryview(value))]))),
        (np.ndarray, Rule(_array)),
        (np.generic, Rule(lambda value: ("scalar", array_digest.scalar_values(value)), is_leaf=True)),
        (np.dtype, Rule(_dtype, is_leaf=True)),
        (torch.Tensor, Rule(_tensor)),
        (torch.UntypedStorage, Rule(lambda value: ("storage", array_digest.storage_values(value)))),
        (torch.TypedStorage, Rule(lambda value: ("storage", [str(value.dtype), value._untyped_storage]))),
        (torch.Generator, Rule(lambda value: ("generator", [str(value.device), value.get_state()]))),
    )
}
