"""What the loop changes within an epoch is noticed at the next batch, and what it only reads is not."""

from __future__ import annotations

import types

import pytest
from prefetchd_client.loader.loop_watch import LoopWatch

LEVEL = 1


class Data:
    def __init__(self) -> None:
        self.scale = 1
        self.name = "a"
        self.seen: list[int] = []
        self.table = [1, 2]
        self.inner = types.SimpleNamespace(p=0.5, steps=[types.SimpleNamespace(q=1)])

    def __getitem__(self, index: int) -> int:
        return LEVEL * index


def set_level(data):
    global LEVEL
    LEVEL += 1


CHANGES = {
    "attribute": (lambda data: setattr(data, "scale", 2), "dataset.scale"),
    "new attribute": (lambda data: setattr(data, "other", 2), "dataset.other"),
    "type of a number": (lambda data: setattr(data, "scale", 1.0), "dataset.scale"),
    "list that grows": (lambda data: data.seen.append(1), "dataset.seen"),
    "attribute of a held object": (lambda data: setattr(data.inner, "p", 0.1), "dataset.inner.p"),
    "attribute in a held list": (lambda data: setattr(data.inner.steps[0], "q", 3), "dataset.inner.steps[0].q"),
    "global of a method": (set_level, "global LEVEL"),
}


@pytest.mark.parametrize(("change", "way"), CHANGES.values(), ids=CHANGES)
def test_change_is_named(change, way):
    data = Data()
    watch = LoopWatch({"dataset": data, "collate_fn": None})
    assert watch.changed() == ""
    change(data)
    assert watch.changed() == way


SAME = {
    "equal number": lambda data: setattr(data, "scale", int("1")),
    "equal text": lambda data: setattr(data, "name", "".join(["a"])),
    "read": lambda data: (data.seen, data.scale, data.inner.p),
    "element of a list": lambda data: data.table.__setitem__(0, 5),
}


@pytest.mark.parametrize("use", SAME.values(), ids=SAME)
def test_no_change_is_none(use):
    data = Data()
    watch = LoopWatch({"dataset": data})
    use(data)
    assert watch.changed() == ""


def test_collate_function_is_watched():
    def collate(samples):
        return samples

    collate.level = 1
    watch = LoopWatch({"dataset": [1, 2], "collate_fn": collate})
    collate.level = 2
    assert watch.changed() == "collate_fn.level"


def test_deleted_attribute_is_a_change():
    data = Data()
    watch = LoopWatch({"dataset": data})
    del data.scale
    assert watch.changed() == "dataset.attributes"
