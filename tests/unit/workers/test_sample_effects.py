"""What a sample writes into the program is found, and what is there for the first time, or for generators, is not."""

from __future__ import annotations

import collections
import multiprocessing as mp
import random
import tarfile
import types
import zipfile

import numpy as np
import pytest
import torch
from prefetchd_client import SampleCache

from prefetchd.workers.sample_effects import SampleEffects

COUNT = 0
TABLE: list[int] = []


class Base:
    shared = 0

    def __init__(self) -> None:
        self.number = 0
        self.seen: list[int] = []
        self.cache: dict[int, int] = {}
        self.queue = collections.deque([1])
        self.array = np.zeros(3)
        self.tensor = torch.zeros(3)
        self.value = mp.Value("i", 0)
        self.table = torch.zeros(2).share_memory_()
        self.inner = types.SimpleNamespace(n=0)
        self.handle = None
        self.numpy = np.random.default_rng(1)
        self.python = random.Random(1)
        self.torch = torch.Generator()

    def __getitem__(self, index: int) -> int:
        return COUNT + len(TABLE)


def count_in_global(_):
    global COUNT
    COUNT += 1


def count_in_class(held):
    type(held).shared += 1


def set_over_class(held):
    held.shared = 5


def set_shared(held):
    held.value.value += 1


WRITES = {
    "number": (lambda held: setattr(held, "number", 1), "dataset.number"),
    "list": (lambda held: held.seen.append(1), "dataset.seen"),
    "dict": (lambda held: held.cache.update({1: 1}), "dataset.cache"),
    "deque": (lambda held: held.queue.append(1), "dataset.queue"),
    "array": (lambda held: held.array.__setitem__(1, 5), "dataset.array"),
    "tensor": (lambda held: held.tensor.__setitem__(1, 5), "dataset.tensor"),
    "held object": (lambda held: setattr(held.inner, "n", 1), "dataset.inner.n"),
    "class": (count_in_class, "dataset.shared"),
    "attribute over the class's": (set_over_class, "dataset.shared"),
    "global": (count_in_global, "global COUNT"),
    "list of a module": (lambda _: TABLE.append(1), "global TABLE"),
}


@pytest.mark.parametrize(("write", "way"), WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("with_shared", [True, False])
def test_write_is_named_once(write, way, with_shared):
    held = Base()
    effects = SampleEffects({"dataset": held, "collate_fn": None}, with_shared=with_shared)
    effects.begin()
    assert effects.first_write() == ""
    write(held)
    assert effects.first_write() == way
    assert effects.first_write() == ""


QUIET = {
    "handle that is opened lazily": lambda held: setattr(held, "handle", open),
    "number that is computed once": lambda held: setattr(held, "length", 5),
    "draws": lambda held: (held.numpy.random(), held.python.random(), torch.rand(1, generator=held.torch)),
    "read": lambda held: (held.seen, held.value.value, held[0]),
}


@pytest.mark.parametrize("use", QUIET.values(), ids=QUIET)
def test_other_changes_are_no_writes(use):
    held = Base()
    effects = SampleEffects({"dataset": held}, with_shared=True)
    effects.begin()
    use(held)
    assert effects.first_write() == ""


@pytest.mark.parametrize(
    ("write", "way", "read"),
    [
        (set_shared, "dataset.value._obj", lambda held: held.value.value),
        (lambda held: held.table.__setitem__(1, 5), "dataset.table", lambda held: held.table.tolist()),
    ],
    ids=["value", "tensor"],
)
def test_shared_memory_counts_without_workers_and_is_put_back(write, way, read):
    held = Base()
    ignoring, counting = (SampleEffects({"dataset": held}, with_shared=each) for each in (False, True))
    before = read(held)
    for effects in (ignoring, counting):
        effects.begin()
    write(held)
    assert ignoring.first_write() == ""
    assert counting.first_write(puts_back=True) == way
    assert read(held) == before


def test_collate_function_is_looked_at():
    collate = types.SimpleNamespace(batches=0)
    effects = SampleEffects({"dataset": [1], "collate_fn": collate}, with_shared=True)
    effects.begin()
    collate.batches += 1
    assert effects.first_write() == "collate_fn.batches"


def test_what_an_open_archive_notes_is_no_write(tmp_path):
    with tarfile.open(tmp_path / "rows.tar", "w") as tar, zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        for number in range(3):
            tar.addfile(tarfile.TarInfo(str(number)))
            archive.writestr(str(number), "row")
    with tarfile.open(tmp_path / "rows.tar") as tar, zipfile.ZipFile(tmp_path / "rows.zip") as archive:
        effects = SampleEffects({"dataset": types.SimpleNamespace(tar=tar, zip=archive)}, with_shared=True)
        effects.begin()
        before = len(tar.members)
        assert tar.getmember("2").name == "2"
        assert archive.read("1") == b"row"
        assert len(tar.members) > before
        assert effects.first_write() == ""


def test_what_a_sample_cache_notes_does_not_count(tmp_path):
    class Counting:
        calls = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.calls += index
            return torch.full((4,), index)

    cache = SampleCache(Counting(), tmp_path / "cache")
    effects = SampleEffects({"dataset": cache}, with_shared=True)
    effects.begin()
    assert torch.equal(cache[0], torch.zeros(4, dtype=torch.int64))
    assert effects.first_write() == ""
    cache[1]
    assert effects.first_write() == "dataset.dataset.calls"
