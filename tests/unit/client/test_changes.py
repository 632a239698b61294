"""What has changed between two looks: seen at a small price, whatever holds it."""

from __future__ import annotations

import collections
import importlib
import sys
from typing import Any

import numpy as np
import pytest
import torch
from prefetchd_client import module_sources
from prefetchd_client.assumptions import Assumptions
from prefetchd_client.changes import ChangeWatch

NAMES = [f"/data/{index}.jpg" for index in range(5000)]
PAIRS = [(f"/data/{index}.jpg", index % 10) for index in range(5000)]


class Holding:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def set_item(key, value):
    def change(held):
        held.value[key] = value

    return change


def set_attribute(name, value):
    return lambda held: setattr(held, name, value)


def deep(held):
    held.value["a"][1].inner["b"] = 4


def write(held):
    held.value[0] = 7


CHANGES = {
    "an attribute": (lambda: 1, set_attribute("value", 2)),
    "its type": (lambda: 1, set_attribute("value", True)),
    "a new attribute": (lambda: 1, set_attribute("other", 1)),
    "a list's element": (lambda: [1, 2, 3], set_item(1, 5)),
    "deep inside": (lambda: {"a": [1, Holding(inner={"b": 3})]}, deep),
    "a large list's element": (lambda: list(NAMES), set_item(4000, "/data/other.jpg")),
    "a large list's length": (lambda: list(NAMES), lambda held: held.value.pop()),
    "a large list's order": (lambda: list(PAIRS), lambda held: held.value.reverse()),
    "an equal large list of other numbers": (lambda: list(range(5000)), set_item(3, 99)),
    "a large dict": (lambda: dict(PAIRS), set_item("/data/7.jpg", 99)),
    "a list in a large list": (lambda: [[index] for index in range(5000)], lambda held: held.value[4000].append(1)),
    "a large list in a list": (lambda: [list(NAMES)], lambda held: held.value[0].pop()),
    "a set": (lambda: {1, 2}, lambda held: held.value.add(3)),
    "a tensor that is another": (lambda: torch.zeros(4), set_attribute("value", torch.zeros(4))),
    "a tensor that torch has written to": (lambda: torch.zeros(4), write),
    "an array that is another": (lambda: np.zeros(4), set_attribute("value", np.zeros(4))),
    "a function": (lambda: len, set_attribute("value", max)),
}


@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_once(make, change):
    held = Holding(value=make())
    watch = ChangeWatch({"dataset": held})
    assert not watch.has_changed()
    assert not watch.has_changed()
    change(held)
    assert watch.has_changed()
    assert not watch.has_changed()


UNCHANGED = {
    "large and equal": (lambda: list(NAMES), lambda held: held.value.append(held.value.pop())),
    "an array that numpy has written to": (lambda: np.zeros(4), write),
    "read": (lambda: collections.OrderedDict(PAIRS), lambda held: list(held.value)),
    "a tensor that was read": (lambda: torch.zeros(4), lambda held: held.value.sum()),
}


@pytest.mark.parametrize(("make", "use"), UNCHANGED.values(), ids=UNCHANGED)
def test_what_is_no_change(make, use):
    held = Holding(value=make())
    watch = ChangeWatch({"dataset": held})
    use(held)
    assert not watch.has_changed()


def test_a_new_array_in_an_old_one_s_memory_is_another():
    """The one that it replaced is gone, and its address may be given again."""
    held = Holding(value=None)
    for _ in range(20):
        held.value = np.zeros(4096)
        watch = ChangeWatch({"dataset": held})
        held.value = None
        held.value = np.zeros(4096)
        assert watch.has_changed()


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        held = Holding(value=torch.zeros(3))
    assert not ChangeWatch({"dataset": held}).has_changed()


def test_generators_and_set_epoch_are_somebody_else_s_affair():
    class Sampler:
        def __init__(self) -> None:
            self.generator = torch.Generator()
            self.epoch = 0
            self.other = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    sampler = Sampler()
    watch = ChangeWatch({"index_sampler": sampler}, [sampler.generator], Assumptions(sampler, [sampler.generator]))
    sampler.generator.manual_seed(5)
    sampler.set_epoch(3)
    assert not watch.has_changed()
    assert sampler.epoch == 3
    sampler.other = 1
    assert watch.has_changed()


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Two of the user's modules, the first of which imports the second; where their files are."""
    (tmp_path / "watched_inner.py").write_text("def half(value):\n    return value / 2\n")
    (tmp_path / "watched_outer.py").write_text(
        "from watched_inner import half\n\n\nclass Data:\n    def get(self, index):\n        return half(index)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("watched_outer", "watched_inner", "watched_third"):
        sys.modules.pop(name, None)


def test_an_edit_of_a_module_is_seen_and_which_ones_there_are_is_searched_for_only_then(modules, monkeypatch):
    watch = ChangeWatch({"dataset": importlib.import_module("watched_outer").Data()})
    searches = []
    search = module_sources.source_values
    monkeypatch.setattr(module_sources, "source_values", lambda source: searches.append(source.name) or search(source))
    assert not watch.has_changed()
    assert searches == []
    (modules / "watched_inner.py").write_text("from watched_third import third\n\nhalf = third\n")
    (modules / "watched_third.py").write_text("def third(value):\n    return value / 3\n")
    assert watch.has_changed()
    assert not watch.has_changed(), "now it is known whom it imports"
    assert "watched_third" in searches
    (modules / "watched_third.py").write_text("def third(value):\n    return value // 3\n")
    assert watch.has_changed()
    assert not watch.has_changed()
