"""decode_structure builds the batch from a batch file's structure (prefetchd.workers.structure_nodes). Nothing in a
structure is ever run: it names tensors, and classes that the reader was given."""

from __future__ import annotations

import base64
import collections
import datetime as dt
import decimal
import fractions
import pathlib
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from prefetchd.wire.batch_file import STRUCTURE_DEPTH
from prefetchd.wire.errors import CallerError, ProtocolError

PLAIN_CLASSES: tuple[type, ...] = (
    collections.OrderedDict,
    collections.Counter,
    collections.deque,
    set,
    frozenset,
    bytearray,
    torch.Size,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    dt.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)
"""Their makers do nothing but make them."""

TEXTS_LIMIT_BYTES = 1 << 30
_MAY_BE_SCALARS = "biufcmMSUV"

Leaf = Callable[[str, str], Any]
"""Leaf(kind, name): the file's tensor or array of that name."""


class ClassAllowList:
    """Lists the classes that objects in batch files may be of: those that make nothing but values, and what the caller
    names."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        """Raises CallerError when one of them is no class."""
        self._classes: dict[tuple[str, str], type] = {}
        for each in (*PLAIN_CLASSES, *classes):
            if not isinstance(each, type):
                raise CallerError(f"classes= holds {each!r}; allowed: classes")
            self._classes[each.__module__, each.__qualname__] = each

    def find(self, module: Any, name: Any) -> type:
        """Returns the class of that name. Raises CallerError, with the knob, when it is none of them."""
        found = self._classes.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if found is None:
            raise CallerError(
                f"a batch holds an instance of {str(module)[:200]!r}.{str(name)[:200]!r}, which is not among the "
                "classes that batch files may hold here. If you trust it: classes=[...] of BatchDirectory and "
                "PrefetchLoader.attach"
            )
        return found


def decode_structure(node: Any, leaf: Leaf, classes: ClassAllowList) -> Any:
    """Returns the batch that `node` describes. Raises ProtocolError when it describes none, and CallerError when it
    names a class that is not allowed."""
    try:
        return _Decoder(leaf, classes).value(node, 0)
    except (ProtocolError, CallerError):
        raise
    except Exception as error:  # whatever a maker raises for arguments that nobody has checked
        raise ProtocolError(f"a batch file's structure is damaged: {type(error).__name__}: {error}") from None


class _Decoder:
    def __init__(self, leaf: Leaf, classes: ClassAllowList) -> None:
        self._leaf = leaf
        self._classes = classes

    def value(self, node: Any, depth: int) -> Any:
        if depth > STRUCTURE_DEPTH:
            raise ProtocolError(f"a batch file's structure is nested deeper than {STRUCTURE_DEPTH}")
        if node is None or isinstance(node, (bool, str, int, float)):
            return node
        below = depth + 1
        if isinstance(node, list):
            return [self.value(each, below) for each in node]
        if "object" in node:
            return self._object(node, below)
        ((kind, content),) = node.items()
        decode = getattr(self, f"_{kind}_of", None)
        if decode is None:
            raise ProtocolError(f"a batch file's structure has a node of kind {kind!r}")
        return decode(content, below)

    def _tensor_of(self, name: str, _: int) -> Any:
        return self._leaf("tensor", name)

    def _array_of(self, name: str, _: int) -> Any:
        return self._leaf("array", name)

    def _tuple_of(self, content: list[Any], depth: int) -> Any:
        return tuple([self.value(each, depth) for each in content])

    def _dict_of(self, content: list[Any], depth: int) -> Any:
        return {self.value(key, depth): self.value(each, depth) for key, each in content}

    def _bytes_of(self, content: str, _: int) -> bytes:
        return base64.b64decode(content, validate=True)

    def _float_of(self, content: str, _: int) -> float:
        return float({"nan": "nan", "inf": "inf", "-inf": "-inf"}[content])

    def _complex_of(self, content: list[Any], depth: int) -> complex:
        real, imaginary = (self.value(each, depth) for each in content)
        return complex(real, imaginary)

    def _scalar_of(self, content: list[Any], _: int) -> Any:
        kind, text = content
        dtype = _numpy_dtype(kind)
        if not dtype.itemsize:
            # An empty text, or no bytes: no buffer has one of these.
            return dtype.type()
        return np.frombuffer(base64.b64decode(text, validate=True), dtype, 1)[0]

    def _texts_of(self, content: list[Any], _: int) -> Any:
        kind, shape, texts = content
        dtype = _numpy_dtype(kind)
        if dtype.itemsize * len(texts) > TEXTS_LIMIT_BYTES:
            raise ProtocolError(f"a batch file has {len(texts)} texts of {dtype.itemsize} bytes each")
        return np.array([str(each) for each in texts], dtype).reshape(shape)

    def _objects_of(self, content: list[Any], depth: int) -> Any:
        shape, nodes = content
        made = np.empty(len(nodes), object)
        for index, node in enumerate(nodes):
            made[index] = self.value(node, depth)
        return made.reshape(shape)

    def _view_of(self, content: list[Any], depth: int) -> Any:
        kind, node = content
        inner = self.value(node, depth)
        if isinstance(inner, torch.Tensor) and kind == "complex128" and inner.dtype is torch.float64:
            return torch.view_as_complex(inner)
        dtype = _numpy_dtype(kind)
        if not isinstance(inner, np.ndarray) or dtype.kind not in "cmM" or inner.dtype.kind not in "if":
            raise ProtocolError(f"a batch file's structure has a view of {type(inner).__name__} as {kind}")
        return inner.view(dtype)[..., 0]

    def _sparse_of(self, content: list[Any], depth: int) -> Any:
        indices, values, shape, coalesced = content
        made = torch.sparse_coo_tensor(
            self.value(indices, depth), self.value(values, depth), tuple(shape), check_invariants=True
        )
        return made._coalesced_(coalesced is True)

    def _grad_of(self, content: Any, depth: int) -> Any:
        return self.value(content, depth).requires_grad_()

    def _object(self, node: dict[str, Any], depth: int) -> Any:
        cls: Any = self._classes.find(*node["object"])
        if "new" in node:
            made = cls.__new__(cls, *[self.value(each, depth) for each in node["new"]])
        else:
            made = cls(*[self.value(each, depth) for each in node["call"]])
        if "state" in node:
            _set_state(made, self.value(node["state"], depth))
        for each in node.get("items", ()):
            made.append(self.value(each, depth))
        for key, each in node.get("pairs", ()):
            made[self.value(key, depth)] = self.value(each, depth)
        return made


def _set_state(made: Any, state: Any) -> None:
    """Sets an object's state as unpickling does."""
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in (attributes or {}).items():
        made.__dict__[name] = value
    for name, value in (slots or {}).items():
        object.__setattr__(made, name, value)


def _numpy_dtype(text: Any) -> Any:
    dtype = np.dtype(str(text))
    if dtype.kind not in _MAY_BE_SCALARS or dtype.hasobject:
        raise ProtocolError(f"a batch file's structure has dtype {text!r}")
    return dtype
