"""With a worker_init_fn batches go to workers as DataLoader deals them: it may have seeded what nobody can find."""

from __future__ import annotations

import ctypes

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from tests.scenario.datasets import equal

pytestmark = pytest.mark.usefixtures("shared_daemon")

libc = ctypes.CDLL(None)


class Rolls(Dataset):
    """What C's own generator gives: no Python object has its state."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int):
        return index, torch.tensor([libc.rand() for _ in range(3)])


def seed_by_place(place: int) -> None:
    libc.srand(1000 + place)


def batches(loader) -> list:
    return [[each.clone() for each in batch] for batch in loader]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_generator_of_a_library_gives_what_it_gives_with_dataloader(workers):
    arguments = {"batch_size": 4, "num_workers": workers, "worker_init_fn": seed_by_place}
    expected = batches(DataLoader(Rolls(), **arguments))
    with PrefetchLoader(Rolls(), seed=workers, **arguments) as loader:
        assert equal(batches(loader), expected)


@pytest.mark.parametrize("init", [None, seed_by_place], ids=["any", "dealt"])
def test_what_other_workers_have_left_is_used_where_any_may_make_it(init):
    """Found as batches of worker 0 in the place of worker 1's (PyTorch's test_ind_worker_queue)."""
    found = []
    for workers in (1, 2):
        with PrefetchLoader(Rolls(), 5, num_workers=workers, worker_init_fn=init, seed=11) as loader:
            found.append(loader.fingerprint)
    assert (found[0] == found[1]) is (init is None)


def test_batches_that_are_made_whole_are_dealt_too():
    arguments = {"batch_size": 4, "num_workers": 2, "worker_init_fn": seed_by_place, "collate_fn": list}
    found = []
    for run in range(2):
        with PrefetchLoader(Rolls(), seed=run, **arguments) as loader:
            found.append([[(index, roll.tolist()) for index, roll in batch] for batch in loader])
    assert found[0] == found[1]
