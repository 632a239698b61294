"""compile_skeleton builds ordinary batches without an unpickler: lists, tuples and dicts of tensors, strings and
numbers.

Most batches are of that kind, and unpickling is a good part of what next() costs when the caches are cold.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

Build: TypeAlias = Callable[[list[Any]], Any]
"""From a batch's tensors, in a list of its own, to the batch."""

_CONSTANTS = (str, int, float, complex, bool, bytes, type(None))


def compile_skeleton(skeleton: bytes, tensors: int) -> Build | None:
    """Returns a function that builds the batch from its `tensors` tensors, or None when only an unpickler can."""
    try:
        found = _Outline(io.BytesIO(skeleton)).load()
        in_order = [each.index if type(each) is _TensorIndex else -1 for each in found] if type(found) is list else None
        if in_order == list(range(tensors)):
            # Just these in their order: the list that is handed in is the batch.
            return _as_it_is
        return _compile(found, set())
    except Exception:  # whatever it holds: the unpickler proper will do it, or say what is wrong
        return None


class _TensorIndex:
    """Marks where a tensor stands in the list."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _NotPlainError(Exception):
    pass


class _Outline(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is not int:
            raise _NotPlainError
        return _TensorIndex(pid)

    def find_class(self, module: str, name: str) -> Any:
        raise _NotPlainError


def _compile(node: Any, seen: set[int]) -> Build:
    kind = type(node)
    if kind is _TensorIndex:
        index = node.index
        return lambda tensors: tensors[index]
    if kind in _CONSTANTS:
        return lambda _: node
    if kind not in (list, tuple, dict) or id(node) in seen:
        # An object that is there twice must come back as one.
        raise _NotPlainError
    seen.add(id(node))
    if kind is dict:
        if not all(type(key) in _CONSTANTS for key in node):
            raise _NotPlainError
        items = [(key, _compile(value, seen)) for key, value in node.items()]
        return lambda tensors: {key: build(tensors) for key, build in items}
    parts = [_compile(each, seen) for each in node]
    if kind is list:
        return lambda tensors: [build(tensors) for build in parts]
    return lambda tensors: tuple([build(tensors) for build in parts])


def _as_it_is(tensors: list[Any]) -> Any:
    return tensors
