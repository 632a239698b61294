"""What the user changes between epochs: the next iterator sees it, those that live go on as they began."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.loader import sessions
from torch.utils.data import Dataset

from prefetchd.wire.errors import DaemonUnavailableError
from tests.scenario.waiting import stream_when


class Scaled(Dataset):
    """Item i is i times what the attributes say."""

    def __init__(self, length: int = 24) -> None:
        self.scale = 1
        self.table = np.ones(length)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return float(index * self.scale * self.table[index])


def values(loader) -> list[float]:
    return torch.cat([batch.clone() for batch in loader]).tolist()


def test_an_attribute_that_is_changed_between_epochs_is_seen(shared_daemon):
    dataset = Scaled()
    with PrefetchLoader(dataset, 4) as loader:
        name = loader.stats()["stream"]
        for scale in (1, 2, 2, 5):
            dataset.scale = scale
            assert values(loader) == [float(index * scale) for index in range(24)]
        assert loader.stats()["stream"] == name
        assert loader.state_dict()["epoch"] == 4


def test_a_change_that_finds_no_daemon_is_taken_when_there_is_one(shared_daemon, monkeypatch):
    def gone(*_, **__):
        raise DaemonUnavailableError("none today")

    dataset = Scaled()
    with PrefetchLoader(dataset, 4) as loader:
        values(loader)
        dataset.scale = 7
        with monkeypatch.context() as patch:
            patch.setattr(sessions, "StreamClient", gone)
            for _ in range(2):
                with pytest.raises(DaemonUnavailableError, match="none today"):
                    next(iter(loader))
        assert values(loader) == [7.0 * index for index in range(24)]


def test_an_iterator_that_lives_goes_on_with_what_it_began_with(shared_daemon):
    dataset = Scaled()
    with PrefetchLoader(dataset, 4) as loader:
        first = iter(loader)
        found = [next(first).clone()]
        dataset.scale = 3
        assert values(loader) == [3.0 * index for index in range(24)]
        assert torch.cat([*found, *(batch.clone() for batch in first)]).tolist() == [float(i) for i in range(24)]


@pytest.mark.parametrize("rows", [24, 40_000], ids=["small", "large"])
def test_a_write_into_an_array_is_seen_as_data_loader_sees_it(shared_daemon, rows):
    """Also one right after the loader was made, and another loader's fork in between hides none."""
    dataset = Scaled(rows)
    with PrefetchLoader(dataset, 4, sampler=range(24)) as loader:
        dataset.table[:] = 2
        assert values(loader) == [2.0 * index for index in range(24)]
        dataset.table[3] = 5
        with PrefetchLoader(Scaled(), 4) as other:
            next(iter(other))
            assert values(loader) == [(5.0 if index == 3 else 2.0) * index for index in range(24)]
            replaced = loader.stats()["stream"], loader.fingerprint
            assert values(loader) == [(5.0 if index == 3 else 2.0) * index for index in range(24)]
            assert (loader.stats()["stream"], loader.fingerprint) == replaced, "nothing was written"


@pytest.mark.usefixtures("executed")
def test_a_write_into_an_array_is_seen_with_refresh(shared_daemon):
    dataset = Scaled(40_000)
    with PrefetchLoader(dataset, 400) as loader:
        values(loader)
        fingerprint = loader.fingerprint
        loader.refresh()
        assert loader.fingerprint == fingerprint, "nothing has changed"
        dataset.table[:] = 4
        assert values(loader) == [float(index) for index in range(40_000)], "numpy does not tell of it"
        loader.refresh()
        assert values(loader) == [4.0 * index for index in range(40_000)]


@pytest.mark.usefixtures("executed")
def test_what_cannot_be_handed_over_any_more_is_told_and_changes_nothing(shared_daemon):
    dataset = Scaled()
    with PrefetchLoader(dataset, 4) as loader:
        values(loader)
        dataset.handle = threading.Lock()
        with pytest.warns(UserWarning, match="handle.*batches are of what it was before"):
            assert values(loader) == [float(index) for index in range(24)]
        assert values(loader) == [float(index) for index in range(24)]


def test_what_no_pickle_takes_along_a_fork_does(shared_daemon):
    dataset = Scaled()
    with PrefetchLoader(dataset, 4) as loader:
        assert values(loader) == [float(index) for index in range(24)]
        dataset.handle, dataset.scale = threading.Lock(), 3
        assert values(loader) == [3.0 * index for index in range(24)]
        assert values(loader) == [3.0 * index for index in range(24)]


def test_a_sampler_that_is_changed_is_another_order(shared_daemon):
    keys = [3, 1, 4]
    with PrefetchLoader(Scaled(), 2, sampler=keys) as loader:
        assert values(loader) == [3.0, 1.0, 4.0]
        keys.append(7)
        assert values(loader) == [3.0, 1.0, 4.0, 7.0]


def test_a_ring_that_was_filled_for_nothing_is_gone(daemon):
    dataset = Scaled()
    with PrefetchLoader(dataset, 4, stream="replaced") as loader:
        values(loader)
        dataset.scale = 2
        values(loader)

        def has_the_only_ring(stream: dict) -> bool:
            rings = ["/" + each for each in daemon.segments() if "-ring-" in each]
            return stream["ring"] and rings == [stream["ring"]["segment"]]

        stream_when(daemon, "replaced", has_the_only_ring, "the former ring is gone")
