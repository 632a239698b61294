"""Compares what a dataset or sampler holds with what it held before it was iterated over."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from prefetchd.workers.held_objects import MOST_ITEMS, held_objects

MOST_COMPARED_BYTES = 1 << 20
OWN = re.compile(r"dataset\.\w+")
"""The way to an attribute of the dataset itself."""


def plain_values(dataset: Any) -> dict[str, Any]:
    """Returns the numbers, texts, small arrays and generators that a dataset or sampler holds, each by the way to it,
    to be compared with what they are later. Runs no code of the user's."""
    return {way: _compared(found) for way, found in held_objects({"dataset": dataset}, numbers=True)}


def first_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Returns "way: was, then is" of the first value that has changed or is an attribute of the dataset's that is new;
    else nothing."""
    for way, value in after.items():
        if way in before and before[way] != value:
            return f"{way}: {before[way]!r:.40}, then {value!r:.40}"
        if way not in before and value is not None and OWN.fullmatch(way):
            return f"{way}: nothing, then {value!r:.40}"
    return ""


def _compared(found: Any) -> Any:
    kind = type(found)
    if kind in (list, tuple) and len(found) > MOST_ITEMS:
        return hash(tuple(map(id, found)))
    if issubclass(kind, random.Random):
        return random.Random.getstate(found)
    if issubclass(kind, np.random.RandomState):
        return pickle.dumps(found.get_state(legacy=False))
    if issubclass(kind, np.random.BitGenerator):
        return pickle.dumps(found.state)
    if issubclass(kind, np.random.Generator):
        return pickle.dumps(found.bit_generator.state)
    if kind in (int, float, complex, bool, str, bytes):
        return found
    if kind is np.ndarray and found.nbytes <= MOST_COMPARED_BYTES and not found.dtype.hasobject:
        return _Content(found.tobytes())
    if kind is torch.Tensor and found.is_cpu and found.layout is torch.strided and found.nbytes <= MOST_COMPARED_BYTES:
        return _Content(bytes(found.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return None


class _Content(bytes):
    """The bytes of an array, which nobody wants to read."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"
