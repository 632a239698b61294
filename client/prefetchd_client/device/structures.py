"""with_tensors walks through a batch as torch's own pin_memory() does: tensors in tuples, lists and mappings; and in
dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

Change = Callable[[Any], Any]

_PLAIN = {torch.Tensor}
_CONSTANTS = (str, bytes, bytearray, int, float, complex, type, type(None))


def with_tensors(batch: Any, tensor: Change, other: Change, method: str) -> Any:
    """Returns the same structure with tensor(t) in each tensor's place, and other(x) in the place of what has a
    `method` of its own for what is wanted here, whatever else it is. The rest stays as it is.

    A tensor or object that is there twice is changed once, and is there twice again. A container that cannot be made
    anew from its parts becomes the plain one of its kind, as with torch.
    """
    kind = type(batch)
    if (kind is list or kind is tuple) and {*map(type, batch)} == _PLAIN and len({*map(id, batch)}) == len(batch):
        # The usual batch, in as few steps as there are.
        return kind(map(tensor, batch))
    return _Walk(tensor, other, method).changed(batch)


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """Returns all tensors that with_tensors() finds, each once; of an object that has a method `to`, those in its
    __dict__."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    def look_into(value: Any) -> Any:
        for part in getattr(value, "__dict__", {}).values():
            walk.changed(part)
        return value

    walk = _Walk(note, look_into, "to")
    walk.changed(batch)
    return found


class _Walk:
    def __init__(self, tensor: Change, other: Change, method: str) -> None:
        self._tensor = tensor
        self._other = other
        self._method = method
        # With what it was: an id stands for one object as long as that lives.
        self._seen: dict[int, tuple[Any, Any]] = {}

    def changed(self, batch: Any) -> Any:
        if isinstance(batch, _CONSTANTS):
            return batch
        known = self._seen.get(id(batch))
        if known is None:
            known = self._seen[id(batch)] = (batch, self._changed(batch))
        return known[1]

    def _changed(self, batch: Any) -> Any:
        if isinstance(batch, torch.Tensor):
            return self._tensor(batch)
        if hasattr(batch, self._method):
            return self._other(batch)
        if isinstance(batch, Mapping):
            return self._mapping(batch)
        if isinstance(batch, Sequence):
            return self._sequence(batch)
        if dataclasses.is_dataclass(batch):
            clone = copy.copy(batch)
            for field in dataclasses.fields(batch):
                if hasattr(batch, field.name):
                    object.__setattr__(clone, field.name, self.changed(getattr(batch, field.name)))
            return clone
        return batch

    def _mapping(self, batch: Mapping[Any, Any]) -> Any:
        parts = {key: self.changed(value) for key, value in batch.items()}
        if type(batch) is dict:
            return parts
        try:
            if isinstance(batch, MutableMapping):
                # It may have more than its items.
                clone = copy.copy(batch)
                clone.update(parts)
                return clone
            return type(batch)(parts)  # type: ignore[call-arg]
        except TypeError:
            return parts

    def _sequence(self, batch: Sequence[Any]) -> Any:
        parts = [self.changed(part) for part in batch]
        kind: Any = type(batch)
        if kind is list:
            return parts
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return kind(*parts)
        try:
            if isinstance(batch, MutableSequence):
                clone = copy.copy(batch)
                for place, part in enumerate(parts):
                    clone[place] = part
                return clone
            return kind(parts)
        except TypeError:
            return tuple(parts) if isinstance(batch, tuple) else parts
