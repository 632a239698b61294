"""What draws under a seed draws the same for the same one, and nobody else's draws change."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from prefetchd_client.seeding import seeded


@pytest.fixture(autouse=True)
def _generators_of_other_tests():
    """A seed that is set stands for the user's: loaders of later tests would take it over."""
    with seeded(1, None):
        yield


def draws(generator: torch.Generator) -> list[float]:
    own = torch.rand(1, generator=generator).item()
    return [torch.rand(1).item(), float(np.random.rand()), random.random(), own]


def test_the_same_draws_for_the_same_seed_and_the_others_untouched():
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    wanted = draws(generator)
    generator.manual_seed(1), torch.manual_seed(1), np.random.seed(1), random.seed(1)
    found = []
    for seed in ((9 << 40) + 1, (9 << 40) + 1, (5 << 40) + 2):
        with seeded(seed, generator):
            found.append(draws(generator))
    assert found[0] == found[1]
    assert all(one != other for one, other in zip(found[0], found[2]))
    assert draws(generator) == wanted


def test_they_are_put_back_after_an_error_too():
    generator = torch.Generator().manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), generator.get_state()
    with pytest.raises(ZeroDivisionError), seeded(1, generator):
        _ = 1 / len(draws(generator)[:0])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert torch.equal(generator.get_state(), before[2])


def test_a_loader_takes_over_no_seed_of_a_transform_s():
    before = torch.initial_seed()
    with seeded(7, None):
        assert torch.initial_seed() == 7
    assert torch.initial_seed() == before


WORDS = [0, 1, 2, 619, 620, 621, 623, 624, 625]


@pytest.mark.parametrize("within", [0, 1, 2])
@pytest.mark.parametrize("normals", [0, 1, 2])
@pytest.mark.parametrize("words", WORDS)
def test_numpys_generator_goes_on_wherever_it_was(words, normals, within):
    np.random.seed(words)
    np.random.bytes(4 * words)
    np.random.standard_normal(normals)
    name, key, *rest = np.random.get_state()
    with seeded(7 << 31, None):
        found = np.random.standard_normal(within).tolist()
    now = np.random.get_state()
    assert (now[0], now[1].tolist(), *now[2:]) == (name, key.tolist(), *rest)
    np.random.seed(7)
    assert np.random.standard_normal(within).tolist() == found


def test_another_generator_of_numpys_goes_on_too():
    ours = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        np.random.standard_normal()
        before = np.random.get_state(legacy=False)
        found = []
        for _ in range(2):
            with seeded(1 << 31, None):
                found.append(np.random.standard_normal(3).tolist())
            assert np.random.get_state(legacy=False) == before
        assert found[0] == found[1]
    finally:
        np.random.set_bit_generator(ours)
