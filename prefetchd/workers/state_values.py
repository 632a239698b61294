"""Turns a dataset's own state, as its state_dict() gives it, into plain values and back (wire.plain_state)."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from prefetchd.wire.errors import CallerError
from prefetchd.wire.plain_state import DEPTH_LIMIT, decode_node, encode_node
from prefetchd.workers.held_objects import held_objects

STATE_CLASSES = "state_classes"
"""The name of a dataset's attribute that lists classes of which its state may hold objects."""

SHUFFLE_BUFFER = "BufferShuffledExamplesIterable"
"""The class of Hugging Face's shuffle buffers, whose content is in no state."""

_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_ARRAY_KINDS = "biufcmMSU"
_LISTS: dict[type, str] = {list: "l", tuple: "t", set: "s", frozenset: "f"}
_MAKERS: dict[str, Any] = {letter: kind for kind, letter in _LISTS.items()}


def has_full_state(dataset: Any) -> bool:
    """Returns False for a dataset whose state_dict() leaves out samples that it has taken and not given yet: one of
    Hugging Face's with a shuffle buffer, by itself or within another dataset."""
    module = sys.modules.get("datasets.iterable_dataset")
    kind = getattr(module, SHUFFLE_BUFFER, None)
    if not isinstance(kind, type):
        return True
    return not any(issubclass(type(found), kind) for _, found in held_objects({"dataset": dataset}))


def encode_state(state: Any, dataset: Any) -> bytes:
    """Encodes a state. Raises CallerError, which says how to allow it, when `state` holds what is no plain value."""
    return encode_node(_node(state, _allowed(dataset), 0))


def decode_state(data: bytes, dataset: Any) -> Any:
    """Decodes a state. Raises CallerError when `data` is none, or holds an object of a class that `dataset` does not
    allow."""
    return _value(decode_node(data), _allowed(dataset))


def _allowed(dataset: Any) -> dict[tuple[str, str], type]:
    classes: Iterable[Any] = getattr(dataset, STATE_CLASSES, ())
    return {(each.__module__, each.__qualname__): each for each in classes}


def _node(value: Any, allowed: dict[tuple[str, str], type], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise CallerError(f"the dataset's state is nested deeper than {DEPTH_LIMIT}, or holds itself")
    kind = type(value)

    def inner(each: Any) -> Any:
        return _node(each, allowed, depth + 1)

    # Python's own types exactly: an object of a subclass has more than its plain value says.
    if value is None or kind in (bool, float, str, bytes):
        return value
    if kind is int:
        return value if _SMALLEST <= value <= _LARGEST else ["i", str(value)]
    if kind in _LISTS:
        return [_LISTS[kind], [inner(each) for each in value]]
    if kind is dict or kind is OrderedDict:
        return ["d" if kind is dict else "o", [[inner(key), inner(each)] for key, each in value.items()]]
    if kind is deque:
        return ["q", value.maxlen, [inner(each) for each in value]]
    if kind is torch.Tensor and value.layout is torch.strided and value.is_cpu and not value.is_quantized:
        dense = value.detach().resolve_conj().resolve_neg().contiguous()
        content = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        return ["T", str(value.dtype).removeprefix("torch."), list(value.shape), content]
    if kind is np.ndarray and value.dtype.kind in _ARRAY_KINDS:
        return ["A", value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic) and value.dtype.kind in _ARRAY_KINDS:
        return ["G", value.dtype.str, value.tobytes()]
    name = (kind.__module__, kind.__qualname__)
    if allowed.get(name) is kind:
        state = value.__getstate__() if hasattr(value, "__getstate__") else value.__dict__
        return ["c", *name, inner(state)]
    raise _refused(name)


def _value(node: Any, allowed: dict[tuple[str, str], type]) -> Any:
    if not isinstance(node, list):
        return node
    letter, content = node[0], node[-1]
    if letter in _MAKERS:
        return _MAKERS[letter](_value(each, allowed) for each in content)
    if letter in "do":
        pairs = ((_value(key, allowed), _value(each, allowed)) for key, each in content)
        return OrderedDict(pairs) if letter == "o" else dict(pairs)
    if letter == "q":
        return deque((_value(each, allowed) for each in content), node[1])
    if letter == "i":
        return int(content)
    if letter == "c":
        return _object(node, allowed)
    return _array(node)


def _object(node: Any, allowed: dict[tuple[str, str], type]) -> Any:
    _, module, name, content = node
    kind: Any = allowed.get((module, name))
    if kind is None:
        raise _refused((module, name))
    made, state = kind.__new__(kind), _value(content, allowed)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return made
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for attribute, each in {**(attributes or {}), **(slots or {})}.items():
        object.__setattr__(made, attribute, each)
    return made


def _array(node: Any) -> Any:
    letter, kind, *shape, content = node
    try:
        if letter == "T":
            dtype = getattr(torch, kind, None)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"a dtype {kind!r:.40}")
            if not content:
                return torch.empty(shape[0], dtype=dtype)
            return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape[0])
        found = np.dtype(kind)
        if found.kind not in _ARRAY_KINDS:
            raise ValueError(f"a dtype {kind!r:.40}")
        array = np.frombuffer(content, found)
        return array[0] if letter == "G" else array.reshape(shape[0]).copy()
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise CallerError(f"a dataset's state in a checkpoint is damaged: {error}") from None


def _refused(name: tuple[str, str]) -> CallerError:
    return CallerError(
        f"the dataset's state holds a {'.'.join(name)[:200]}; allowed: numbers, texts, bytes, lists, tuples, dicts, "
        f"sets, tensors and arrays. If you trust that class in checkpoints, name it: {STATE_CLASSES} = (ThatClass,) in "
        "the dataset's class"
    )
