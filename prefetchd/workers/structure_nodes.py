"""Encodes the structure of a batch as JSON, for a file that anybody may have made: reading it runs nothing.

    JSON                                            value
    text, true, false, null, integer, finite number itself
    [node, ...]                                     list
    {"tuple": [node, ...]}                          tuple
    {"dict": [[key node, node], ...]}               dict
    {"tensor": NAME}, {"array": NAME}               the tensor of that name in the file
    {"bytes": BASE64}                               bytes
    {"float": "nan", "inf" or "-inf"}               float
    {"complex": [node, node]}                       complex
    {"scalar": [dtype, BASE64]}                     NumPy scalar
    {"texts": [dtype, shape, [text, ...]]}          NumPy array of texts
    {"objects": [shape, [node, ...]]}               NumPy array of objects
    {"view": [dtype, node]}                         that array or tensor of real numbers or integers, seen as complex
                                                    ones or times
    {"sparse": [indices, values, shape, coalesced]} sparse COO tensor of those two nodes
    {"grad": node}                                  that tensor, with requires_grad
    {"object": [module, name], "new" or "call": [node, ...], "state", "items", "pairs"}
                                                    an object: see below

An object is what its __reduce_ex__ says, where that is no more than: its class made with arguments, by __new__ or by a
call, then its state, then its items or its pairs. The reader looks its class up among those that it was given, and
never imports one.
"""

from __future__ import annotations

import base64
import copyreg
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from prefetchd.wire.batch_file import STRUCTURE_DEPTH
from prefetchd.wire.errors import CallerError

Node = Any
"""A value that JSON can say."""

_TIMES = "mM"
_WIDE = {torch.complex128: torch.float64}


class UnplainError(CallerError):
    """The batch holds what a batch file cannot; names the type."""

    code = "unplain"


def encode_structure(batch: Any, leaf: Callable[[Any], str | None]) -> Node:
    """Encodes the structure of `batch` as a node. `leaf` stores a tensor or array and returns its name; None when the
    file's format knows none like it. Raises UnplainError."""
    return _Encoder(leaf).node(batch, 0)


class _Encoder:
    def __init__(self, leaf: Callable[[Any], str | None]) -> None:
        self._leaf = leaf
        self._kept: list[Any] = []
        """Values that are made on the way live here as long as their ids stand for them."""

    def node(self, value: Any, depth: int) -> Node:
        if depth > STRUCTURE_DEPTH:
            raise nested_too_deep()
        # Plain values by exact type: what a subclass adds would be lost. Such a value goes on to _object(), which keeps
        # it or refuses.
        kind, below = type(value), depth + 1
        if value is None or kind in (bool, str, int):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind is list:
            return [self.node(each, below) for each in value]
        if kind is tuple:
            return {"tuple": [self.node(each, below) for each in value]}
        if kind is dict:
            return {"dict": [[self.node(key, below), self.node(each, below)] for key, each in value.items()]}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if kind is complex:
            return {"complex": [self.node(value.real, below), self.node(value.imag, below)]}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, below)
        if kind is np.ndarray:
            return self._array(value, below)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return {"scalar": [_dtype_text(value.dtype), base64.b64encode(value.tobytes()).decode("ascii")]}
        return self._object(value, below)

    def _tensor(self, value: torch.Tensor, depth: int) -> Node:
        if (name := self._leaf(value)) is not None:
            return {"tensor": name}
        if type(value) is not torch.Tensor or value.__dict__ or not value.is_cpu or value.is_nested:
            raise _unplain(value)
        if value.requires_grad:
            return {"grad": self._tensor(self._keep(value.detach()), depth)}
        if value.layout is torch.sparse_coo:
            parts = [self._keep(value._indices()), self._keep(value._values())]
            nodes = [self._tensor(part, depth) for part in parts]
            return {"sparse": [*nodes, list(value.shape), value.is_coalesced()]}
        if value.layout is not torch.strided:
            raise _unplain(value)
        if value.is_conj() or value.is_neg():
            return self._tensor(self._keep(value.resolve_conj().resolve_neg()), depth)
        if value.dtype in _WIDE:
            return {"view": [_torch_name(value.dtype), self._tensor(self._keep(torch.view_as_real(value)), depth)]}
        raise _unplain(value)

    def _array(self, value: Any, depth: int) -> Node:
        if (name := self._leaf(value)) is not None:
            return {"array": name}
        kind = value.dtype.kind
        if kind == "U":
            return {"texts": [_dtype_text(value.dtype), list(value.shape), value.reshape(-1).tolist()]}
        if kind == "O":
            return {"objects": [list(value.shape), [self.node(each, depth) for each in value.reshape(-1).tolist()]]}
        if kind in _TIMES or value.dtype == np.complex128:
            plain = self._keep(np.ascontiguousarray(value).reshape(value.shape))
            below = np.int64 if kind in _TIMES else np.float64
            # One more dimension, as of a tensor: the view of an array without any would have no place for its parts.
            inner = self._keep(plain.reshape(*plain.shape, 1).view(below))
            return {"view": [_dtype_text(value.dtype), self._array(inner, depth)]}
        raise _unplain(value)

    def _object(self, value: Any, depth: int) -> Node:
        cls = type(value)
        if isinstance(value, type) or callable(getattr(value, "__code__", None)):
            raise _unplain(value)
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:
            raise _unplain(value) from None
        if not isinstance(reduced, tuple) or len(reduced) < 2:
            raise _unplain(value)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if make is copyreg.__newobj__ and arguments and arguments[0] is cls:  # type: ignore[attr-defined]
            how, arguments = "new", arguments[1:]
        elif make is cls:
            how = "call"
        else:
            raise _unplain(value)
        node: dict[str, Node] = {"object": [cls.__module__, cls.__qualname__]}
        node[how] = [self.node(each, depth) for each in arguments]
        if state is not None:
            node["state"] = self.node(state, depth)
        if items is not None:
            node["items"] = [self.node(each, depth) for each in items]
        if pairs is not None:
            node["pairs"] = [[self.node(key, depth), self.node(each, depth)] for key, each in pairs]
        return node

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value


def nested_too_deep() -> UnplainError:
    return UnplainError(f"a batch is nested deeper than {STRUCTURE_DEPTH}, or holds itself: let collate_fn flatten it")


def _unplain(value: Any) -> UnplainError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (torch.Tensor, np.ndarray)):
        kind = f"{kind} of {value.dtype}" + (f", {value.layout}" if isinstance(value, torch.Tensor) else "")
    return UnplainError(
        f"a batch holds a {kind}; allowed in a batch file: dense and sparse tensors, arrays, numbers, texts, bytes, "
        "and lists, tuples, dicts, named tuples and plain objects of these. Let collate_fn make those of it, or leave "
        "store= out of the stream's declaration"
    )


def _dtype_text(dtype: Any) -> str:
    return str(np.dtype(dtype).str)


def _torch_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
