"""Samples of the first batch of a collate_fn of one's own are loaded by all workers, and collated by one."""

from __future__ import annotations

import os
import threading
import time
import warnings

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from prefetchd.kill_points.kill_points import ORDERS_VARIABLE
from tests.scenario.waiting import stream_when

ROWS = 12
WORKERS = 4
SAMPLE_S = 0.05


class Slow(Dataset):
    """Samples that draw, and say who has made them."""

    def __len__(self):
        return 3 * ROWS

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return {"pixels": torch.rand(3, 8, 8) + index, "index": index, "made_by": os.getpid()}


class Raising(Slow):
    def __getitem__(self, index):
        if index == ROWS - 2:
            raise ValueError(f"sample {index} is broken")
        return super().__getitem__(index)


class Locked(Slow):
    def __getitem__(self, index):
        return super().__getitem__(index) | {"lock": threading.Lock()}


def listed(samples):
    """One's own collation: it draws, too."""
    return {
        "pixels": torch.stack([each["pixels"] for each in samples]) * torch.rand(1),
        "indices": [each["index"] for each in samples],
        "made_by": [each["made_by"] for each in samples],
    }


def loader_of(dataset: Dataset, workers: int = WORKERS, **arguments) -> PrefetchLoader:
    return PrefetchLoader(dataset, batch_size=ROWS, collate_fn=listed, num_workers=workers, **arguments)


def first_batch(dataset: Dataset, workers: int = WORKERS, **arguments):
    with loader_of(dataset, workers, **arguments) as loader:
        return next(iter(loader))


@pytest.fixture(autouse=True)
def _workers_may_be_many():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def test_all_workers_load_samples_of_the_first_batch_and_it_is_the_same(daemon):
    daemon.start()
    alone = first_batch(Slow(), 1, stream="alone", seed=0)
    helped = first_batch(Slow(), stream="helped", seed=0)
    assert len(set(alone["made_by"])) == 1
    assert len(set(helped["made_by"])) > 1
    assert helped["indices"] == alone["indices"] == list(range(ROWS))
    assert torch.equal(helped["pixels"], alone["pixels"])


def test_samples_of_a_sampler_are_shared_too(daemon):
    daemon.start()
    order = [5, 3, 20, 7, 11, 2, 30, 1, 4, 6, 8, 9]
    found = first_batch(Slow(), sampler=order, stream="sampler")
    assert found["indices"] == order
    assert len(set(found["made_by"])) > 1


def test_helpers_that_are_killed_half_way_take_nothing_with_them(daemon, monkeypatch):
    daemon.start()
    # Workers of an interpreter of its own have this environment; here it comes too late.
    monkeypatch.setenv("PREFETCHD_START", "exec")
    monkeypatch.setenv(ORDERS_VARIABLE, "worker.sample.headless:1")
    with loader_of(Slow(), stream="killed") as loader:
        found = next(iter(loader))
        seen = stream_when(daemon, "killed", lambda it: it["worker_deaths"], "a helper is dead")
    assert found["indices"] == list(range(ROWS))
    assert seen["failed_batches"] == 0


def test_samples_that_cannot_be_handed_over_are_loaded_where_they_are_collated(daemon):
    daemon.start()
    with loader_of(Locked(), stream="locked") as loader:
        found = next(iter(loader))
        assert stream_when(daemon, "locked")["worker_deaths"] == 0
    assert found["indices"] == list(range(ROWS))
    assert len(set(found["made_by"])) == 1


def test_a_sample_that_raises_is_told_as_ever(daemon):
    daemon.start()
    with pytest.raises(ValueError, match=f"sample {ROWS - 2} is broken"):
        first_batch(Raising(), stream="raises")


def test_a_sample_that_is_left_out_is_told_once(daemon, capfd):
    daemon.start()
    found = first_batch(Raising(), stream="skips", on_error="skip")
    assert found["indices"] == [index for index in range(ROWS) if index != ROWS - 2]
    assert len(set(found["made_by"])) > 1
    assert capfd.readouterr().err.count("is left out") <= 1
