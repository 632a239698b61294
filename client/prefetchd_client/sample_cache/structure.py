"""Structure takes a sample apart into leaves of fixed shape, and puts it together again: the same types and values.

A structure is plain data, for JSON: ["leaf", number], ["tuple" or "list", [parts]], ["named", class, [parts]] and
["dict", [[key, part], ...]].
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from prefetchd.wire.cache_directory import SUFFIX, LeafFile
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd_client.dense import dense

DEPTH_LIMIT = 100


class Unfit(Exception):  # noqa: N818 - such a sample is not stored, and nothing is wrong
    """The sample's structure, types, dtypes or shapes are not those of the others."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Describes one leaf. `path` are its keys from the sample down; `kind` says what it is in a sample: "tensor",
    "array", "int", "float", "bool", "numpy.NAME", or the class of a kind of tensor."""

    path: tuple[str, ...]
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def file(self) -> str:
        return "/".join(self.path) + SUFFIX


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def leaf_data(leaf: Leaf) -> list[Any]:
    """Returns the leaf as plain data."""
    return [list(leaf.path), leaf.kind, dtype_name(leaf.dtype), list(leaf.shape)]


def leaf_from(data: list[Any], file: LeafFile) -> Leaf:
    """Returns the leaf that `data` describes, of the file that the cache has for it. Raises ProtocolError when they
    differ."""
    path, kind, dtype, shape = data
    leaf = Leaf(tuple(path), kind, _dtype(dtype), tuple(shape))
    if not isinstance(kind, str) or (leaf.file, dtype, leaf.shape) != (file.file, file.dtype, file.shape):
        raise ProtocolError(f"a sample cache describes {file.file} as something else than it is")
    return leaf


ClassOf = Callable[[str], type]


class Structure:
    """Takes samples apart and makes them."""

    def __init__(self, node: Any, leaves: list[Leaf], class_of: ClassOf) -> None:
        self.node = node
        self.leaves = leaves
        self._class_of = class_of
        self._makers = [_maker(leaf.kind, class_of) for leaf in leaves]

    def take(self, sample: Any) -> list[torch.Tensor]:
        """Returns the leaves of `sample` as dense tensors. Raises Unfit."""
        values: list[Any] = []
        _take(self.node, sample, values, self._class_of)
        return [_stored(leaf, value) for leaf, value in zip(self.leaves, values)]

    def make(self, rows: list[torch.Tensor]) -> Any:
        """Returns the sample of these leaves, which become part of it."""
        return _make(self.node, [make(row) for make, row in zip(self._makers, rows)], self._class_of)


def structure_of(sample: Any) -> tuple[Structure, dict[str, type]]:
    """Returns the structure that `sample` has, and the classes in it by name. Raises CallerError when it cannot be
    stored."""
    leaves: list[Leaf] = []
    classes: dict[str, type] = {}
    node = _describe(sample, (), leaves, classes)
    if not leaves:
        raise CallerError(f"a sample of type {type(sample).__name__} without a tensor, array or number in it")
    return Structure(node, leaves, classes.__getitem__), classes


def structure_data(structure: Structure) -> dict[str, Any]:
    """Returns the structure as plain data."""
    return {"node": structure.node, "leaves": [leaf_data(leaf) for leaf in structure.leaves]}


def check_structure(data: Any, files: Sequence[LeafFile]) -> None:
    """Raises ProtocolError unless `data` makes samples of just these leaves."""
    try:
        described = data["leaves"]
        if len(described) != len(files):
            raise ProtocolError(f"a sample cache describes {len(described)} leaves, and has {len(files)}")
        for leaf, file in zip(described, files):
            leaf_from(leaf, file)
        numbers = sorted(_leaf_numbers(data["node"], 0))
        if numbers != list(range(len(files))):
            raise ProtocolError("a sample cache's structure does not have each leaf once")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ProtocolError(f"a sample cache's structure is damaged: {error!r}") from None


def structure_from(data: Any, files: Sequence[LeafFile], sample: Callable[[], Any]) -> Structure:
    """Returns the structure of this data, which check_structure() has looked at. Nothing is imported for it: its
    classes are found in modules that are there by now, else in `sample`. Raises Unfit when they are not there
    either."""
    leaves = [leaf_from(leaf, file) for leaf, file in zip(data["leaves"], files)]
    classes: dict[str, type] = {}
    made: dict[str, type] | None = None
    named = dict.fromkeys(_class_names(data["node"]), _is_named_tuple)
    for name, fits in (named | {leaf.kind: _is_tensor for leaf in leaves if ":" in leaf.kind}).items():
        found = _present(name)
        if not fits(found):
            made = made if made is not None else _classes_in(sample())
            found = made.get(name)
        if found is None or not fits(found):
            raise Unfit(f"without a {name!r:.200}")
        classes[name] = found
    return Structure(data["node"], leaves, classes.__getitem__)


def _present(name: str) -> Any:
    """Returns what "module:qualified.name" is in a module that is imported by now, or None."""
    module, _, qualified = name.partition(":")
    if module == "__main__":
        # Of a worker that is another module.
        return None
    try:
        return functools.reduce(getattr, qualified.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _is_named_tuple(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")


def _is_tensor(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, torch.Tensor)


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ProtocolError(f"a sample cache has dtype {name!r:.40}, which this torch does not know")
    return found


def _leaf_numbers(node: Any, depth: int) -> list[Any]:
    """Returns the numbers of all leaves below `node`. Raises ProtocolError when it is no node."""
    what = node[0]
    # It comes out of a file: whoever has written that decides how deep it is.
    if depth > DEPTH_LIMIT:
        raise ProtocolError(f"a sample cache's structure is nested deeper than {DEPTH_LIMIT}")
    if what == "leaf":
        _, number = node
        # -1 is the number of no leaf: check_structure() refuses it.
        return [number] if type(number) is int else [-1]
    if what == "dict":
        _, pairs = node
        if not all(isinstance(key, str) for key, _ in pairs):
            raise ProtocolError("a sample cache's structure has a key that is no text")
        parts = [part for _, part in pairs]
    elif what == "named":
        _, name, parts = node
        if not isinstance(name, str) or ":" not in name:
            raise ProtocolError(f"a sample cache's structure has a class {name!r:.80}")
    elif what in ("tuple", "list"):
        _, parts = node
    else:
        raise ProtocolError(f"a sample cache's structure has a node {what!r:.40}")
    return [number for part in parts for number in _leaf_numbers(part, depth + 1)]


def _class_names(node: Any) -> set[str]:
    if node[0] == "leaf":
        return set()
    parts = [part for _, part in node[1]] if node[0] == "dict" else node[-1]
    inner = set().union(*map(_class_names, parts))
    return inner | {node[1]} if node[0] == "named" else inner


def _classes_in(sample: Any) -> dict[str, type]:
    try:
        return structure_of(sample)[1]
    except CallerError as error:
        raise Unfit(str(error)) from None


# --- what a sample is ---

# As default_collate makes them.
_NUMBERS: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}
_KINDS_OF_NUMBERS = frozenset(kind.__name__ for kind in _NUMBERS)


def _describe(sample: Any, path: tuple[str, ...], leaves: list[Leaf], classes: dict[str, type]) -> Any:
    kind = type(sample)
    if kind is dict:
        return ["dict", [[key, _describe(sample[key], (*path, _key(key)), leaves, classes)] for key in sample]]
    if kind in (tuple, list) or (isinstance(sample, tuple) and hasattr(kind, "_fields")):
        names = getattr(kind, "_fields", None) or map(str, range(len(sample)))
        parts = [_describe(value, (*path, name), leaves, classes) for name, value in zip(names, sample)]
        if kind in (tuple, list):
            return [kind.__name__, parts]
        return ["named", _named(kind, classes), parts]
    leaves.append(_describe_leaf(sample, path or ("sample",), classes))
    return ["leaf", len(leaves) - 1]


def _describe_leaf(value: Any, path: tuple[str, ...], classes: dict[str, type]) -> Leaf:
    kind = type(value)
    if kind in _NUMBERS:
        return Leaf(path, kind.__name__, _NUMBERS[kind], ())
    if isinstance(value, torch.Tensor):
        if _is_dense(value) and 0 not in value.shape:
            name = "tensor" if kind is torch.Tensor else _named(kind, classes)
            return Leaf(path, name, value.dtype, tuple(value.shape))
        raise _cannot(path, f"a {kind.__name__} {_fault(value)}")
    if kind is np.ndarray or isinstance(value, (np.number, np.bool_)):
        if 0 in value.shape:
            raise _cannot(path, f"an array of shape {value.shape}")
        try:
            dtype = torch.from_numpy(np.empty(0, value.dtype)).dtype
        except (TypeError, ValueError):
            # The latter for another byte order.
            raise _cannot(path, f"an array of {value.dtype}") from None
        return Leaf(path, "array" if kind is np.ndarray else f"numpy.{kind.__name__}", dtype, tuple(value.shape))
    raise _cannot(path, kind.__name__)


def _cannot(path: tuple[str, ...], what: str) -> CallerError:
    return CallerError(
        f"sample[{']['.join(path)}] is {what}: a sample cache keeps dense tensors and arrays of fixed shape, and "
        "numbers. Convert it in the dataset (PILToTensor, Resize), or leave it to the transform after the cache"
    )


def _is_dense(value: torch.Tensor) -> bool:
    return (
        value.layout is torch.strided
        and value.is_cpu
        and not value.requires_grad
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
        and not value.__dict__
    )


def _fault(value: torch.Tensor) -> str:
    """Says why a tensor cannot be kept."""
    if 0 in value.shape:
        return f"of shape {tuple(value.shape)}"
    if value.layout is not torch.strided:
        return f"of layout {value.layout}"
    if not value.is_cpu:
        return f"on {value.device}"
    if value.requires_grad:
        return "that requires grad"
    if value.__dict__:
        return f"with attributes {', '.join(value.__dict__)}"
    return "that is quantized" if value.is_quantized else "that is a conjugate or negative view"


def _key(key: Any) -> str:
    if type(key) is not str or not key or "/" in key or key.startswith((".", "_")):
        raise CallerError(f"a key {key!r} in a sample; allowed: strings that can be names of files")
    return key


def _named(kind: type, classes: dict[str, type]) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    classes[name] = kind
    return name


# --- apart, and together ---


def _take(node: Any, value: Any, values: list[Any], class_of: ClassOf) -> None:
    what = node[0]
    if what == "leaf":
        values.append(value)
        return
    if what == "dict":
        if type(value) is not dict or list(value) != [key for key, _ in node[1]]:
            raise Unfit(f"not a dict of {[key for key, _ in node[1]]}")
        for key, part in node[1]:
            _take(part, value[key], values, class_of)
        return
    kind: Any = {"tuple": tuple, "list": list}.get(what) or class_of(node[1])
    if type(value) is not kind or len(value) != len(node[-1]):
        raise Unfit(f"not a {kind.__name__} of {len(node[-1])}")
    for part, item in zip(node[-1], value):
        _take(part, item, values, class_of)


def _make(node: Any, values: list[Any], class_of: ClassOf) -> Any:
    what = node[0]
    if what == "leaf":
        return values[node[1]]
    if what == "dict":
        return {key: _make(part, values, class_of) for key, part in node[1]}
    parts = [_make(part, values, class_of) for part in node[-1]]
    if what == "list":
        return parts
    return tuple(parts) if what == "tuple" else class_of(node[1])._make(parts)  # type: ignore[attr-defined]


def _stored(leaf: Leaf, value: Any) -> torch.Tensor:
    try:
        found = _describe_leaf(value, leaf.path, {})
    except CallerError as error:
        raise Unfit(str(error)) from None
    if found != leaf:
        raise Unfit(f"sample[{']['.join(leaf.path)}] is {_worded(found)}, not {_worded(leaf)}")
    if isinstance(value, torch.Tensor):
        return dense(value.as_subclass(torch.Tensor))
    try:
        if leaf.kind in _KINDS_OF_NUMBERS:
            return torch.tensor(value, dtype=leaf.dtype)
        return torch.from_numpy(np.array(value)).to(leaf.dtype).contiguous()
    except (OverflowError, RuntimeError, TypeError, ValueError):
        raise Unfit(f"{value!r} is no {leaf.dtype}") from None


def _worded(leaf: Leaf) -> str:
    return f"{leaf.kind} of {dtype_name(leaf.dtype)}{list(leaf.shape)}"


def _maker(kind: str, class_of: ClassOf) -> Callable[[torch.Tensor], Any]:
    if kind == "tensor":
        return lambda row: row
    if kind == "array":
        return lambda row: row.numpy()
    if kind in ("int", "float", "bool"):
        return lambda row: row.item()
    if kind.startswith("numpy."):
        return lambda row: row.numpy()[()]
    return lambda row: row.as_subclass(class_of(kind))
