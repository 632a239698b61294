"""Samples that use CUDA, which no fork of this process can: with num_workers=0 they are made here, as by DataLoader.

Without a GPU `Poisoned` plays it: it raises CUDA's error in every process but the trainer's."""

from __future__ import annotations

import itertools
import os
import warnings

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

TRAINER = os.getpid()
TEXTS = [
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method",
    "CUDA error: initialization error\nCUDA kernel errors might be asynchronously reported at some other API call",
]
ON_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def touch(text: str = TEXTS[0]) -> None:
    if os.getpid() != TRAINER:
        raise RuntimeError(text)


class Poisoned(Dataset[torch.Tensor]):
    def __init__(self, text: str = TEXTS[0], first: int = 0) -> None:
        self.text, self.first, self.made = text, first, 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.first:
            touch(self.text)
        if os.getpid() == TRAINER:
            self.made += 1
        return torch.rand(3) + index


class Failing(Poisoned):
    """Raises that error wherever it is."""

    asked = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        raise RuntimeError(TEXTS[0])


class Stream(IterableDataset[int]):
    def __iter__(self):
        touch()
        return iter(range(10))


def collate(samples):
    touch()
    return torch.stack(samples)


def taken(loader, epochs: int = 1) -> list[torch.Tensor]:
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("text", TEXTS)
def test_batches_are_made_here_and_once_it_is_told(shared_daemon, text):
    dataset = Poisoned(text)
    with PrefetchLoader(dataset, 4, shuffle=True, seed=3) as loader:
        with pytest.warns(UserWarning, match="use CUDA, which no fork of this process can") as told:
            first = taken(loader, 2)
        assert len(told) == 1
        assert told[0].filename == __file__
        assert loader.stats()["inline"]
    assert dataset.made == 40, "in this process"
    with warnings.catch_warnings(), PrefetchLoader(dataset, 4, shuffle=True, seed=3) as loader:
        warnings.simplefilter("error")
        assert all(map(torch.equal, first, taken(loader, 2))), "another loader knows, and makes the same"


def test_they_are_those_that_a_worker_would_have_made(shared_daemon):
    with PrefetchLoader(Poisoned(first=100), 4, shuffle=True, seed=3) as loader:
        wanted = taken(loader, 2)
    with PrefetchLoader(Poisoned(), 4, shuffle=True, seed=3) as loader, pytest.warns(UserWarning, match="use CUDA"):
        assert all(map(torch.equal, wanted, taken(loader, 2)))


def test_in_the_middle_of_an_epoch_too(shared_daemon):
    with PrefetchLoader(Poisoned(first=100), 4, seed=3) as loader:
        wanted = taken(loader, 2)
    with PrefetchLoader(Poisoned(first=9), 4, seed=3) as loader:
        iterator = iter(loader)
        with pytest.warns(UserWarning, match="use CUDA"):
            found = [*itertools.islice(iterator, 3)]
        state = loader.state_dict()
        found += iterator
        assert all(map(torch.equal, wanted, found + taken(loader)))
        loader.load_state_dict(state)
        assert all(map(torch.equal, wanted[3:5], taken(loader)))


def test_what_the_collate_function_moves(shared_daemon):
    dataset = Poisoned(first=100)
    with PrefetchLoader(dataset, 4, collate_fn=collate) as loader, pytest.warns(UserWarning, match="use CUDA"):
        assert [len(batch) for batch in loader] == [4] * 5


def test_an_iterable_dataset(shared_daemon):
    with PrefetchLoader(Stream(), 4) as loader, pytest.warns(UserWarning, match="use CUDA"):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_sampler_of_the_script_s_own(shared_daemon):
    with PrefetchLoader(Poisoned(), 4, sampler=[3, 1, 2, 7, 5]) as loader, pytest.warns(UserWarning, match="use CUDA"):
        assert [batch[:, 0].int().tolist() for batch in loader] == [[3, 1, 2, 7], [5]]


@pytest.mark.parametrize("text", TEXTS)
def test_workers_that_were_asked_for_raise_as_dataloader_s_do(shared_daemon, text):
    told = pytest.raises(RuntimeError, match=text.split("\n")[0].split(".")[0])
    with PrefetchLoader(Poisoned(text), 4, num_workers=1) as loader, told:
        taken(loader)


def test_other_errors_are_raised(shared_daemon):
    dataset = Poisoned("CUDA error: an illegal memory access was encountered")
    with PrefetchLoader(dataset, 4) as loader, pytest.raises(RuntimeError, match="illegal memory access"):
        taken(loader)


def test_batches_that_are_made_here_already_are_not_moved_again(monkeypatch):
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    dataset = Failing()
    with warnings.catch_warnings(), PrefetchLoader(dataset, 4) as loader:
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA"):
            next(iter(loader))
    assert dataset.asked == 1


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_it_is_no_bad_sample(shared_daemon, on_error):
    with PrefetchLoader(Poisoned(), 4, on_error=on_error) as loader, pytest.warns(UserWarning, match="use CUDA"):
        assert [len(batch) for batch in loader] == [4] * 5


@ON_A_GPU
def test_tensors_that_lie_on_the_gpu(shared_daemon):
    dataset = TensorDataset(torch.arange(40.0, device="cuda").view(10, 4), torch.arange(10, device="cuda"))
    wanted = taken(DataLoader(dataset, 4))
    with PrefetchLoader(dataset, 4) as loader, pytest.warns(UserWarning, match="use CUDA"):
        found = taken(loader)
    for (rows, labels), (own_rows, own_labels) in zip(wanted, found, strict=True):
        assert own_rows.is_cuda
        assert torch.equal(rows, own_rows)
        assert torch.equal(labels, own_labels)


@ON_A_GPU
def test_a_collate_function_that_moves_to_the_gpu(shared_daemon):
    torch.zeros(1, device="cuda")
    dataset = TensorDataset(torch.arange(8.0))
    with PrefetchLoader(dataset, 4, collate_fn=to_the_gpu) as loader, pytest.warns(UserWarning, match="use CUDA"):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def to_the_gpu(samples):
    return torch.stack([value for (value,) in samples]).cuda()
