"""Generators that a dataset or a collate_fn holds in its own objects: what they give depends on the sample alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset, default_collate

LENGTH, BATCH = 24, 4
KINDS = ("RandomState", "Generator", "Random", "torch.Generator")


class Drawing(Dataset):
    """Item i is a draw of each kind of generator, all of which it holds."""

    def __init__(self) -> None:
        self.state = np.random.RandomState(1)
        self.inner = {"generator": np.random.default_rng(2), "random": [random.Random(3)]}
        self.torch = torch.Generator().manual_seed(4)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict:
        draws = self.state.rand(), self.inner["generator"].random(), self.inner["random"][0].random()
        return dict(zip(KINDS, (*draws, torch.rand((), generator=self.torch, dtype=torch.float64).item())))


class Mixing:
    """A collate_fn that draws, too."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)

    def __call__(self, samples: list) -> dict:
        return default_collate(samples) | {"collate_fn": torch.full((len(samples),), self.generator.random())}


def epochs(workers: int, collate_fn: Mixing | None) -> dict[str, list[torch.Tensor]]:
    """The draws of two epochs by what they are of: made anew, by so many workers."""
    options = {"batch_size": BATCH, "num_workers": workers, "seed": 7, "buffer": 6, "fresh": True}
    with PrefetchLoader(Drawing(), collate_fn=collate_fn, **options) as loader:
        batches = [{kind: draws.clone() for kind, draws in batch.items()} for _ in range(2) for batch in loader]
    return {kind: [batch[kind] for batch in batches] for kind in batches[0]}


@pytest.mark.parametrize("collates", [False, True], ids=["by rows", "whole batches"])
def test_neither_the_number_of_workers_nor_the_run_changes_what_they_give(daemon, collates):
    daemon.start("--workers", "3")
    first, *others = (epochs(workers, Mixing() if collates else None) for workers in (1, 2, 3, 2, 1))
    for other in others:
        for kind, draws in first.items():
            assert all(map(torch.equal, draws, other[kind])), f"another run has other draws of {kind}"
    for kind in KINDS:
        assert len(torch.cat(first[kind]).unique()) == 2 * LENGTH, f"samples have the same draw of {kind}"
    if collates:
        assert len(torch.cat(first["collate_fn"]).unique()) == 2 * LENGTH // BATCH, "batches have the same draw"
