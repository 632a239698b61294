"""difference says in what two batches differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Difference:
    """Describes the first thing that is not the same. `is_of_values` when types, shapes and lengths are the same, and
    only values are not."""

    text: str
    is_of_values: bool = False


def difference(theirs: Any, ours: Any, label: str = "batch") -> Difference | None:
    """Returns None when both have the same types, shapes and values all the way down; not-a-number equals itself.
    `label` is how the text calls them."""
    if type(theirs) is not type(ours) and _name(theirs) != _name(ours):
        return Difference(f"{label} is a {type(ours).__name__}, with DataLoader a {type(theirs).__name__}")
    if isinstance(theirs, (torch.Tensor, np.ndarray)):
        return _of_arrays(theirs, ours, label)
    if isinstance(theirs, Mapping):
        if list(theirs) != list(ours):
            return Difference(f"{label} has the keys {list(ours)}, with DataLoader {list(theirs)}")
        return _first((theirs[key], ours[key], f"{label}[{key!r}]") for key in theirs)
    if isinstance(theirs, (list, tuple)):
        if len(theirs) != len(ours):
            return Difference(f"{label} has {len(ours)} parts, with DataLoader {len(theirs)}")
        return _first((one, other, f"{label}[{at}]") for at, (one, other) in enumerate(zip(theirs, ours)))
    if theirs is ours or theirs == ours or (theirs != theirs and ours != ours):
        return None
    if isinstance(theirs, (str, bytes, int, float, complex)):
        return Difference(f"{label} is {ours!r}, with DataLoader {theirs!r}", is_of_values=True)
    # Objects of classes that do not say when they are equal.
    parts = getattr(theirs, "__dict__", None), getattr(ours, "__dict__", None)
    return difference(*parts, label) if all(parts) else None


def _name(value: Any) -> tuple[str, str]:
    """Returns the name of the value's class: a class that was defined in a function is another one in each process that
    it was pickled in."""
    return type(value).__module__, type(value).__qualname__


def _first(parts: Any) -> Difference | None:
    return next((found for part in parts if (found := difference(*part)) is not None), None)


def _of_arrays(theirs: Any, ours: Any, label: str) -> Difference | None:
    for name in ("dtype", "shape"):
        one, other = getattr(theirs, name), getattr(ours, name)
        if one != other:
            return Difference(f"{label} has the {name} {_plain(other)}, with DataLoader {_plain(one)}")
    same = _same_tensor(theirs, ours) if isinstance(theirs, torch.Tensor) else _same_array(theirs, ours)
    return None if same else Difference(f"{label} has other values", is_of_values=True)


def _same_tensor(theirs: torch.Tensor, ours: torch.Tensor) -> bool:
    if theirs.layout is not torch.strided or theirs.is_nested:
        return str(theirs) == str(ours)
    theirs, ours = theirs.cpu(), ours.cpu()
    return bool(torch.equal(theirs, ours) or ((theirs == ours) | ((theirs != theirs) & (ours != ours))).all())


def _same_array(theirs: Any, ours: Any) -> bool:
    return bool(((theirs == ours) | ((theirs != theirs) & (ours != ours))).all())


def _plain(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)
