"""What has changed between two looks: seen at a small price, whatever holds it."""

from __future__ import annotations

import collections
import importlib
import os
import sys
import warnings
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from prefetchd_client.changes import change_walks
from prefetchd_client.changes.change_walks import SMALL_BYTES
from prefetchd_client.changes.change_watch import ChangeWatch
from prefetchd_client.fingerprint import module_sources
from prefetchd_client.fingerprint.walk import fingerprint
from prefetchd_client.session.sampler_state import SamplerState

NAMES = [f"/data/{index}.jpg" for index in range(5000)]
PAIRS = [(f"/data/{index}.jpg", index % 10) for index in range(5000)]


def begun_watch(*arguments, **options):
    """A watch that has begun."""
    watch = ChangeWatch(*arguments, **options)
    watch.begin()
    return watch


class Holding:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


LARGE = SMALL_BYTES


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
    "a tensor that is another": (lambda: torch.zeros(4), set_attribute("value", torch.ones(4))),
    "a large tensor that is another": (lambda: torch.zeros(LARGE), set_attribute("value", torch.zeros(LARGE))),
    "a large tensor that torch has written to": (lambda: torch.zeros(LARGE), write),
    "a tensor that torch has written to": (lambda: torch.zeros(4), write),
    "an array that is another": (lambda: np.zeros(4), set_attribute("value", np.ones(4))),
    "an array that numpy has written to": (lambda: np.zeros(4), write),
    "a large array that is another": (lambda: np.zeros(LARGE), set_attribute("value", np.zeros(LARGE))),
    "a function": (lambda: len, set_attribute("value", max)),
}


@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_once(make, change):
    held = Holding(value=make())
    watch = begun_watch({"dataset": held})
    assert not watch.has_changed()
    assert not watch.has_changed()
    change(held)
    assert watch.has_changed()
    assert not watch.has_changed()


UNCHANGED = {
    "large and equal": (lambda: list(NAMES), lambda held: held.value.append(held.value.pop())),
    "a large array that numpy has written to, unseen": (lambda: np.zeros(LARGE), write),
    "an array like it": (lambda: np.zeros(4), set_attribute("value", np.zeros(4))),
    "read": (lambda: collections.OrderedDict(PAIRS), lambda held: list(held.value)),
    "a tensor that was read": (lambda: torch.zeros(4), lambda held: held.value.sum()),
}


@pytest.mark.parametrize(("make", "use"), UNCHANGED.values(), ids=UNCHANGED)
def test_what_is_no_change(make, use):
    held = Holding(value=make())
    watch = begun_watch({"dataset": held})
    use(held)
    assert not watch.has_changed()


def test_a_new_array_in_an_old_one_s_memory_is_another():
    """The one that it replaced is gone, and its address may be given again."""
    held = Holding(value=None)
    for _ in range(20):
        held.value = np.zeros(LARGE)
        watch = begun_watch({"dataset": held})
        held.value = None
        held.value = np.zeros(LARGE)
        assert watch.has_changed()


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        held = Holding(value=torch.zeros(3))
    assert not begun_watch({"dataset": held}).has_changed()


def test_generators_and_set_epoch_are_somebody_else_s_affair():
    class Sampler:
        def __init__(self) -> None:
            self.generator = torch.Generator()
            self.epoch = 0
            self.passes = 0
            self.weights = [1, 2]

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    sampler = Sampler()
    watch = begun_watch({"index_sampler": sampler}, [sampler.generator], SamplerState(sampler, [sampler.generator]))
    sampler.generator.manual_seed(5)
    sampler.set_epoch(3)
    assert not watch.has_changed()
    assert sampler.epoch == 3
    sampler.passes = 1
    assert not watch.has_changed(), "plain attributes make another plan, and no other stream"
    assert sampler.passes == 1
    sampler.weights[0] = 5
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
    watch = begun_watch({"dataset": importlib.import_module("watched_outer").Data()})
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


# --- where this process is forked ---


class Forked:
    """A watch as a loader has it that forks: a fork of this process tells what it has found, or does so "late", to who
    waits for it."""

    def __init__(self, parts, *, tells=True, former=None) -> None:
        self.told = None
        self.is_late = tells == "late"
        self.asked = 0
        self.watch = ChangeWatch(parts, elsewhere=self.elsewhere, former=former.watch if former else None)
        reading, writing = os.pipe()
        self.until, self.until_closed = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            os.close(reading)
            fingerprint(parts, (), self.watch.plain)
            os.close(self.until_closed)
            with open(writing, "wb") as file:
                file.write(self.watch.found())
            # As long as it lives, pages are shared.
            os.read(self.until, 1)
            os._exit(0)
        os.close(writing)
        self.watch.forked()
        self.watch.begin()
        with open(reading, "rb") as file:
            found = file.read()
        if tells:
            self.told = found

    def elsewhere(self, within_s: float):
        self.asked += 1
        self.is_late = self.is_late and not within_s
        return self.told if not self.is_late else None

    def has_changed(self) -> bool:
        return self.watch.has_changed()

    def end(self) -> None:
        os.close(self.until_closed)
        os.close(self.until)
        assert os.waitpid(self.pid, 0)[1] == 0


@pytest.fixture
def forked():
    """Forked(...), and their ends afterwards."""
    made = []

    def fork(*arguments, **options) -> Forked:
        made.append(Forked(*arguments, **options))
        return made[-1]

    yield fork
    # The latest first: it has the pipes of those before.
    for each in reversed(made):
        each.end()


@pytest.mark.parametrize(("make", "change"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("tells", [True, False], ids=["told", "not told"])
def test_a_fork_and_its_parent_see_a_change(make, change, tells, forked):
    held = Holding(value=make())
    first = forked({"dataset": held}, tells=tells)
    assert tells <= (not first.has_changed())
    change(held)
    assert first.has_changed()
    # Then this process is forked again.
    again = forked({"dataset": held}, former=first)
    assert not again.has_changed()
    assert not again.has_changed()


def test_a_write_beside_an_array_waits_for_what_the_fork_found(forked):
    """The first and the last page of an array hold other memory too."""
    around = np.zeros(2 * LARGE)
    held = Holding(value=around[1:LARGE])
    late = forked({"dataset": held}, tells="late")
    around[0] = 7
    assert not late.has_changed()
    held.value[5] = 1
    assert late.has_changed()


LONG = 40_000
LASTING = {
    "strings": lambda: [f"/data/{index}.jpg" for index in range(LONG)],
    "pairs": lambda: [(f"/data/{index}.jpg", index % 10) for index in range(LONG)],
    "numbers": lambda: list(range(LONG)),
    "a tuple": lambda: tuple(range(LONG)),
    # So long that malloc gives it pages of its own.
    "a dict": lambda: dict.fromkeys(range(50 * LONG), "label"),
}


@pytest.mark.parametrize("make", LASTING.values(), ids=LASTING)
def test_elements_that_cannot_change_are_never_looked_at(make, monkeypatch, forked):
    held = Holding(value=make(), epoch=0)
    first = forked({"dataset": held})

    def look(value) -> bool:
        assert len(value) < 200, "all are looked at"
        return True

    monkeypatch.setattr(change_walks, "_cannot_change", look)
    assert not first.has_changed()
    held.epoch = 1
    assert first.has_changed()
    again = forked({"dataset": held}, former=first)
    assert not again.has_changed()
    # The second fork, too, was spared: it would have ended with an error.
    assert msgpack.unpackb(again.told, strict_map_key=False)[2] == msgpack.unpackb(first.told, strict_map_key=False)[2]


def test_what_only_seemed_to_last_is_looked_at(forked):
    """A few elements are of another kind than those that a glance has met."""
    value = list(range(LONG))
    value[12345] = [1]
    held = Holding(value=value)
    first = forked({"dataset": held})
    assert not first.has_changed()
    value[12345].append(2)
    assert first.has_changed()


def test_another_s_fork_hides_nothing(forked):
    held = Holding(value=list(NAMES), array=np.zeros(LARGE))
    first = forked({"dataset": held})
    held.value[7] = "other"
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert first.has_changed()
    held.array[3] = 1
    again = forked({"dataset": held}, former=first)
    held.array[3] = 2
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert again.has_changed()


def test_the_next_fork_takes_the_fingerprint_of_a_long_list_over(forked):
    held = Holding(value=list(NAMES), epoch=0)
    first = forked({"dataset": held})
    assert not first.has_changed()
    held.epoch = 1
    again = forked({"dataset": held}, former=first)
    assert again.watch.plain[id(held.value)][0] is held.value
    assert fingerprint({"dataset": held}, (), again.watch.plain) == fingerprint({"dataset": held})
    held.value[0] = "other"
    third = forked({"dataset": held}, former=again)
    assert id(held.value) not in third.watch.plain
