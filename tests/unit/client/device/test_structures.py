"""Batches of every structure: what torch's pin_memory() goes through is gone through, with the same outcome."""

from __future__ import annotations

import array
import collections
import collections.abc
import dataclasses
import types
from typing import Any, NamedTuple

import pytest
import torch
from prefetchd_client.device.structures import tensors_in, with_tensors
from torch.utils.data._utils.pin_memory import pin_memory

T = torch.ones(2)


class Pair(NamedTuple):
    left: Any
    right: Any


class Owned:
    """It knows itself how it is pinned, and how it is moved."""

    def __init__(self) -> None:
        self.pixels = T

    def pin_memory(self) -> str:
        return "pinned"

    def to(self, device: Any) -> str:
        return "moved"


class Named(dict):
    title = "no item"


@dataclasses.dataclass(frozen=True)
class Frame:
    pixels: Any
    label: str = "x"


BATCHES = {
    "a tensor": T,
    "a list": [T, 1, "text", b"bytes", None, 2.5],
    "a tuple": (T, (T,)),
    "a namedtuple": Pair(T, [T]),
    "a dict": {"x": T, "y": {"z": [T]}},
    "an ordered dict": collections.OrderedDict(a=T),
    "a default dict": collections.defaultdict(list, a=[T]),
    "a dict with more to it": Named(a=T),
    "a mapping that cannot be changed": types.MappingProxyType({"a": T}),
    "a list of its own class": collections.UserList([T, 2]),
    "a range": range(3),
    "numbers": array.array("i", [1, 2]),
    "a deque": collections.deque([T]),
    "something that pins itself": [Owned()],
    "something else": [object],
}


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def described(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, collections.abc.Mapping):
        items = {key: described(value) for key, value in batch.items()}
        return type(batch), items, vars(batch) if hasattr(batch, "__dict__") else None
    if isinstance(batch, collections.abc.Sequence) and not isinstance(batch, (str, bytes)):
        return type(batch), [described(each) for each in batch]
    return batch


@pytest.mark.parametrize("name", BATCHES)
def test_as_torch_does(name, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", double)
    theirs = pin_memory(BATCHES[name])
    ours = with_tensors(BATCHES[name], double, lambda value: value.pin_memory(), "pin_memory")
    assert described(ours) == described(theirs)


def test_what_is_there_twice_is_there_twice_again():
    inner = {"x": T}
    found = with_tensors([T, T, inner, inner], double, None, "to")
    assert found[0] is found[1]
    assert found[2] is found[3]
    assert found[2]["x"] is found[0]


def test_dataclasses_frozen_ones_too():
    before = Frame(T)
    found = with_tensors([before], double, None, "to")
    assert (type(found[0]), found[0].pixels.tolist(), found[0].label) == (Frame, [2, 2], "x")
    assert before.pixels is T


def test_the_tensors_of_a_batch():
    batch = {"a": [T, (T, torch.zeros(1))], "b": Frame(torch.zeros(2)), "c": Owned()}
    assert [each.shape[0] for each in tensors_in(batch)] == [2, 1, 2]
