"""What a multiprocessing.Manager holds is reached from wherever the user's code runs, as from DataLoader's workers."""

from __future__ import annotations

import multiprocessing
import os

import pytest
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset, Sampler

LENGTH = 24


class Shared(Dataset):
    """Item i is what the proxy `known` has for i, and each worker's process is noted in it."""

    def __init__(self, known) -> None:
        self.known = known

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        self.known[f"pid {os.getpid()}"] = True
        return self.known[index]


class CalledWhenLoaded(Shared):
    """Talks to the manager where it is loaded, before workers are forked there: each needs a connection of its own."""

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        assert self.known[0] == 0


class SharedOrder(Sampler):
    """Asks the proxy for each index."""

    def __init__(self, known) -> None:
        self.known = known

    def __iter__(self):
        return (self.known[at] // 5 for at in range(LENGTH - 1, -1, -1))

    def __len__(self) -> int:
        return LENGTH


@pytest.fixture
def known():
    with multiprocessing.Manager() as manager:
        yield manager.dict({each: 5 * each for each in range(LENGTH)})


def in_lists(loader) -> list:
    return [batch.tolist() for batch in loader]


@pytest.fixture(params=["fork", "exec", "spawn"])
def start(request, monkeypatch) -> dict:
    """The arguments of loaders whose workers begin in this way."""
    if request.param == "exec":
        monkeypatch.setenv("PREFETCHD_START", "exec")
    return {"multiprocessing_context": "spawn"} if request.param == "spawn" else {}


@pytest.mark.parametrize("kind", [Shared, CalledWhenLoaded])
def test_a_dataset_reaches_its_manager(shared_daemon, known, start, kind):
    expected = in_lists(DataLoader(Shared(known), batch_size=4))
    with PrefetchLoader(kind(known), batch_size=4, num_workers=2, buffer=6, **start) as loader:
        assert in_lists(loader) == expected
        assert in_lists(loader) == expected
    workers = {name for name in dict(known) if str(name).startswith("pid")} - {f"pid {os.getpid()}"}
    assert workers, "who made them has written to it"


def test_a_sampler_reaches_its_manager(shared_daemon, known, start):
    dataset, sampler = list(range(LENGTH)), SharedOrder(known)
    expected = in_lists(DataLoader(dataset, batch_size=4, sampler=sampler))
    with PrefetchLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, buffer=6, **start) as loader:
        assert in_lists(loader) == expected
        assert in_lists(loader) == expected
