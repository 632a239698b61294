"""Generators that programs hold are found wherever they are, and give the same for the same seed and nothing else."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefetchd.workers.held_objects import MOST_ITEMS
from prefetchd.workers.own_generators import OwnGenerators
from prefetchd.workers.seeding import SampleSeeder


class Holder:
    def __init__(self, **held) -> None:
        self.__dict__.update(held)

    def method(self) -> None:
        """Bound, it leads to what it belongs to."""


class Slotted:
    __slots__ = ("held", "unset")

    def __init__(self, held) -> None:
        self.held = held


class Guarded:
    """Looking at it runs none of its code."""

    def __init__(self, held) -> None:
        object.__setattr__(self, "held", held)

    def __getattribute__(self, name):
        raise AssertionError(f"{name} was asked for")


class OwnDict(dict):
    def __getitem__(self, key):
        raise AssertionError(f"{key} was asked for")


GENERATORS = {
    "random.Random": (lambda: random.Random(1), lambda found: found.random()),
    "RandomState": (lambda: np.random.RandomState(1), lambda found: found.rand()),
    "RandomState of another kind": (lambda: np.random.RandomState(np.random.PCG64(1)), lambda found: found.rand()),
    "Generator": (lambda: np.random.default_rng(1), lambda found: found.random()),
    "Generator of another kind": (lambda: np.random.Generator(np.random.Philox(1)), lambda found: found.random()),
    "BitGenerator": (lambda: np.random.SFC64(1), lambda found: int(found.random_raw())),
    "torch.Generator": (torch.Generator, lambda found: float(torch.rand((), generator=found))),
}
PLACES = {
    "itself": lambda found: found,
    "attribute": lambda found: Holder(inner=Holder(rng=found)),
    "slot": Slotted,
    "list": lambda found: [0, [found]],
    "tuple": lambda found: (found,),
    "named tuple": lambda found: namedtuple("Pair", "a b")(1, found),
    "dict": lambda found: {"key": {3: found}},
    "ordered dict": lambda found: OrderedDict(key=found),
    "dict with an attribute": lambda found: OwnDict(key=found),
    "partial": lambda found: functools.partial(print, found),
    "keyword of a partial": lambda found: functools.partial(print, file=found),
    "closure": lambda found: lambda: found,
    "default": lambda found: lambda rng=found: rng,
    "bound method": lambda found: Holder(rng=found).method,
    "guarded": Guarded,
    "beside a table": lambda found: Holder(table=list(range(MOST_ITEMS + 1)), rng=found),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("make", "draw"), GENERATORS.values(), ids=GENERATORS)
def test_it_is_found_and_seeded(make, draw, place):
    generator = make()
    held = place(generator)
    own = OwnGenerators({"dataset": held})
    own.look()
    assert own
    own.seed(11)
    first = [draw(generator) for _ in range(3)]
    own.seed(12)
    assert [draw(generator) for _ in range(3)] != first
    own.seed(11)
    assert [draw(generator) for _ in range(3)] == first


@pytest.mark.parametrize(
    "held",
    [
        None,
        Holder(numbers=np.zeros(3), text="x"),
        random._inst,
        np.random.mtrand._rand,
        torch.default_generator,
        random.SystemRandom(),
        random,
        np.random.RandomState,
    ],
    ids=lambda held: type(held).__name__ + getattr(held, "__name__", ""),
)
def test_what_is_none_or_everybody_s_is_left_alone(held):
    own = OwnGenerators({"dataset": Holder(held=held)})
    own.look()
    assert not own


@given(st.integers(0, (1 << 63) - 1), st.integers(1, 6))
def test_no_two_of_them_give_the_same(seed, count):
    held = [np.random.RandomState(0) for _ in range(count)]
    own = OwnGenerators({"dataset": held})
    own.look()
    own.seed(seed)
    assert len({each.rand() for each in held}) == count


def test_what_is_found_later_changes_nothing_for_the_others():
    early = Holder(b=random.Random(0))
    own = OwnGenerators({"dataset": early})
    own.look()
    own.seed(5)
    alone = early.b.random()
    early.a = random.Random(0)
    own.look()
    own.seed(5)
    assert early.b.random() == alone
    assert early.a.random() != alone


def test_half_of_a_pair_of_normals_does_not_stay():
    held = np.random.RandomState(0)
    own = OwnGenerators({"dataset": held})
    own.look()
    own.seed(5)
    first = [held.standard_normal() for _ in range(3)]
    own.seed(5)
    assert [held.standard_normal() for _ in range(3)] == first


def test_objects_that_hold_one_another_come_to_an_end():
    one, other = Holder(), Holder()
    one.other, other.one, other.rng = other, one, random.Random(0)
    own = OwnGenerators({"dataset": one})
    own.look()
    assert own


class Lazy:
    """What it makes when it is first asked, it makes with its generator as that was handed over."""

    def __init__(self) -> None:
        self.rng = random.Random(4)
        self.order = None
        self.calls = 0

    def __call__(self, index):
        self.calls += 1
        if self.order is None:
            self.order = self.rng.sample(range(100), 100)
            self.later = np.random.default_rng()
        return self.order[index], self.rng.random(), self.later.random()


@pytest.mark.parametrize("lazy", [False, True])
def test_the_first_sample_sees_what_every_worker_was_given(lazy):
    handed_over = random.Random(4).sample(range(100), 100)
    made = []
    for first in (0, 1):
        dataset, seeder = Lazy(), SampleSeeder(lazy=lazy)
        seeder.seek(OwnGenerators({"dataset": dataset}))
        found = {index: seeder.run(index, dataset, index) for index in range(first, 8)}
        assert dataset.calls == 8 - first + 1
        made.append({index: found[index] for index in range(1, 8)})
        assert [found[index][0] for index in found] == handed_over[first:8]
    assert made[0] == made[1]


def test_one_that_raises_at_first_is_asked_again_only_if_it_has_a_generator():
    calls = []

    def fails(held):
        calls.append(held)
        raise ValueError("at first")

    for held, expected in ((Holder(), 1), (Holder(rng=random.Random(0)), 2)):
        calls.clear()
        seeder = SampleSeeder()
        seeder.seek(OwnGenerators({"dataset": held}))
        with pytest.raises(ValueError, match="at first"):
            seeder.run(1, fails, held)
        assert len(calls) == expected


def test_no_code_of_the_user_s_is_run():
    class Forged(list):
        def __len__(self) -> int:
            return 5

        def __iter__(self):
            raise AssertionError

        __getitem__ = __getattribute__ = __iter__

    class Table(dict):
        __len__ = __iter__ = keys = __getitem__ = Forged.__iter__

    own = OwnGenerators({"dataset": Forged([Table(a=random.Random())])})
    own.look()
    assert own
