"""A generator goes on as if nobody had seeded it and drawn meanwhile."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from prefetchd.workers import generator_states
from prefetchd.workers.generator_states import kept, random_memory_is_known

INDICES = [0, 1, 623, 624, 625]


class OwnRandom(random.Random):
    """Of a class of its own."""


class OwnState(np.random.RandomState):
    """Likewise."""


def draws(generator, count: int) -> list:
    if isinstance(generator, torch.Generator):
        return torch.randn(count, generator=generator).tolist()
    return [generator.gauss(0, 1) if isinstance(generator, random.Random) else generator.normal() for _ in range(count)]


def seed(generator, number: int) -> None:
    if isinstance(generator, (torch.Generator)):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = np.random.PCG64(number).state
    else:
        generator.seed(number)


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(1),
        lambda: OwnRandom(1),
        lambda: np.random.RandomState(1),
        lambda: OwnState(1),
        lambda: np.random.default_rng(1),
        lambda: torch.Generator().manual_seed(1),
    ],
    ids=["random's", "a class of random's", "numpy's legacy", "a class of numpy's", "numpy's", "torch's"],
)
@pytest.mark.parametrize("within", [0, 1, 2, 700])
@pytest.mark.parametrize("before", [0, 1, 2, 311, 312, 313])
def test_it_goes_on_as_if_nothing_had_been_drawn(make, before, within):
    generator, undisturbed = make(), make()
    assert draws(generator, before) == draws(undisturbed, before)
    put_back = kept(generator)
    seed(generator, 7)
    draws(generator, within)
    put_back()
    assert draws(generator, 5) == draws(undisturbed, 5)


@pytest.mark.parametrize("within", [0, 1, 2])
@pytest.mark.parametrize("normals", [0, 1, 2])
@pytest.mark.parametrize("numbers", INDICES)
def test_randoms_state_is_what_it_was_wherever_it_was(numbers, normals, within):
    generator = random.Random(numbers)
    for _ in range(numbers):
        generator.getrandbits(32)
    draws(generator, normals)
    before = generator.getstate()
    put_back = kept(generator)
    generator.seed(7)
    draws(generator, within)
    put_back()
    assert generator.getstate() == before


def test_it_goes_on_as_well_where_its_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(generator_states, "random_memory_is_known", lambda: False)
    generator = random.Random(3)
    draws(generator, 1)
    before = generator.getstate()
    put_back = kept(generator)
    draws(generator, 3)
    put_back()
    assert generator.getstate() == before


def test_memory_that_is_not_what_a_generator_says_is_not_known(monkeypatch):
    assert random_memory_is_known()
    other = memoryview(bytearray(2500))
    monkeypatch.setattr(generator_states, "random_memory", lambda generator: other)
    assert not random_memory_is_known.__wrapped__()
