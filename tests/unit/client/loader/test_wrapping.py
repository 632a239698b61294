"""A loader's arguments, found again: another loader that is made of them gives the same batches."""

from __future__ import annotations

import pickle

import pytest
import torch
from prefetchd_client.loader.wrapping import arguments_of
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

DATASET = torch.arange(20)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def shared() -> dict:
    """A generator for both the loader and its sampler."""
    generator = seeded()
    return {"generator": generator, "sampler": RandomSampler(DATASET, generator=generator)}


MADE = {
    "in order": {},
    "shuffle": {"shuffle": True},
    "shuffle with a generator": {"shuffle": True, "generator": seeded()},
    "sequential": {"sampler": SequentialSampler(DATASET)},
    "random": {"sampler": RandomSampler(DATASET)},
    "sequential over fewer": {"sampler": SequentialSampler(range(5))},
    "random over fewer": {"sampler": RandomSampler(range(5))},
    "random over as many": {"sampler": RandomSampler(range(20))},
    "random with a generator": {"sampler": RandomSampler(DATASET, generator=seeded())},
    "the loader has a generator": {"sampler": RandomSampler(DATASET), "generator": seeded()},
    "both have one": shared(),
    "each has one": {"sampler": RandomSampler(DATASET, generator=seeded()), "generator": seeded()},
    "replacement": {"sampler": RandomSampler(DATASET, replacement=True)},
    "a number of samples": {"sampler": RandomSampler(DATASET, num_samples=7)},
    "weights": {"sampler": WeightedRandomSampler([1.0, 2.0], 6)},
    "a list": {"sampler": [3, 1, 2]},
    "drop_last": {"sampler": SequentialSampler(range(10)), "drop_last": True},
    "no batching": {"sampler": SequentialSampler(range(5)), "batch_size": None},
    "a batch sampler": {"batch_size": 1, "batch_sampler": BatchSampler(SequentialSampler(range(5)), 2, False)},
}


def batches_of(loader: DataLoader) -> tuple[list, list]:
    """Those of two epochs that begin with the same seeds, and what is drawn afterwards."""
    generators = [loader.generator, getattr(loader.sampler, "generator", None)]
    for generator in filter(None, generators):
        generator.manual_seed(5)
    torch.manual_seed(3)
    return [each.tolist() for _ in range(2) for each in loader], torch.rand(2).tolist()


@pytest.mark.parametrize("name", MADE)
def test_a_loader_made_of_another_s_arguments_gives_the_same_batches(name):
    loader = DataLoader(DATASET, **({"batch_size": 3} | MADE[name]))
    again = DataLoader(DATASET, **arguments_of(loader))
    assert batches_of(again) == batches_of(loader)
    for attribute in ("generator", "batch_size", "drop_last"):
        assert getattr(again, attribute) is getattr(loader, attribute)


def test_what_dataloader_made_itself_is_no_argument():
    assert "sampler" not in arguments_of(DataLoader(DATASET))
    assert "sampler" not in arguments_of(DataLoader(DATASET, shuffle=True, generator=seeded()))
    assert "sampler" in arguments_of(DataLoader(DATASET, sampler=RandomSampler(range(5))))
    pickle.dumps(arguments_of(DataLoader(DATASET, shuffle=True)))
