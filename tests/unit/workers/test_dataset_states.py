"""States of datasets as torchdata, litdata and MosaicML give them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import get_worker_info

from prefetchd.workers.dataset_states import DatasetStates

ROWS, SHARDS = 4, 3


def states(dataset: Any) -> tuple[DatasetStates, list[str]]:
    warned: list[str] = []
    return DatasetStates(dataset, ROWS, SHARDS, warned.append), warned


class Loads:
    loaded: Any = None

    def load_state_dict(self, state) -> None:
        self.loaded = state


class Plain(Loads):
    def state_dict(self):
        return {"at": 7}


class Lenient(Loads):
    def state_dict(self, *args, deep: bool = False, **others):
        return {"at": 7}


class Raising(Loads):
    def state_dict(self):
        raise RuntimeError("not here")


class Wanting(Loads):
    def state_dict(self, what):
        raise AssertionError("it is not called")


class Litdata(Loads):
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def state_dict(self, num_samples_yielded, num_workers, batch_size):
        assert get_worker_info() is None, "it refuses to be called in a worker"
        return {"samples": num_samples_yielded, "workers": num_workers, "batch_size": batch_size}


class MosaicML(Loads):
    next_epoch = 6

    def state_dict(self, num_samples, from_beginning):
        assert not from_beginning
        return {"epoch": self.next_epoch - 1, "sample_in_epoch": num_samples}


@pytest.mark.parametrize("kind", [Plain, Lenient])
def test_state_without_arguments_is_read(kind):
    found, _ = states(kind())
    assert found.read(object(), 2) == ({"at": 7}, None)
    assert found.read(Plain(), 2) == ({"at": 7}, {"at": 7})
    assert not found.is_of_epoch


@pytest.mark.parametrize("kind", [Wanting, Loads, object])
def test_state_that_needs_other_arguments_is_none(kind):
    found, warned = states(kind())
    assert found.read(kind(), 2) is None
    assert warned == []


def test_state_that_raises_is_none_and_warned_of():
    found, warned = states(Raising())
    assert found.read(object(), 2) is None
    assert warned == ["state_dict() of the dataset raised RuntimeError: not here"]


def test_litdata_counts_whole_rounds_of_all_workers(monkeypatch):
    info = object()
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    dataset = Litdata(ROWS)
    found, warned = states(dataset)
    state = {"samples": 5 * ROWS * SHARDS, "workers": SHARDS, "batch_size": ROWS}
    assert found.read(dataset, 5) == (state, None)
    assert get_worker_info() is info
    assert not warned
    found.begin(5)
    found.load(state)
    assert dataset.loaded == state


@pytest.mark.parametrize(("batch_size", "number", "has_state"), [(1, 1, True), (8, 1, False), (8, 2, True)])
def test_litdata_with_another_batch_size_counts_in_its_own(batch_size, number, has_state):
    found, _ = states(Litdata(batch_size))
    assert (found.read(object(), number) is not None) is has_state


def test_mosaicml_goes_on_in_the_epoch_of_its_state():
    dataset = MosaicML()
    found, _ = states(dataset)
    assert found.is_of_epoch
    state, of_iterator = found.read(object(), 2) or (None, None)
    assert (state, of_iterator) == ({"epoch": 5, "sample_in_epoch": 0}, None)
    dataset.next_epoch = 9
    found.load(state)
    assert (dataset.next_epoch, dataset.loaded) == (5, state)


@pytest.mark.parametrize(("counted", "then"), [(0, 3), (2, 2)])
def test_mosaicml_begins_a_later_epoch_where_nothing_has_counted(counted, then):
    dataset = MosaicML()
    dataset.next_epoch = counted
    states(dataset)[0].begin(3)
    assert dataset.next_epoch == then
