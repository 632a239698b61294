"""num_workers=0 is a promise: what works in the trainer works, and what the loop and the samples change is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset, get_worker_info

TRAINER = os.getpid()


class Items(Dataset[int]):
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.scale = 1

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index * self.scale


class Seeing(Items):
    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        return index


class SeldomSeeing(Items):
    """Its first samples write nothing."""

    def __getitem__(self, index: int) -> int:
        if index >= 8:
            self.seen.append(index)
        return index


class Pooled(Items):
    def __init__(self) -> None:
        super().__init__()
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(int).result()

    def __getitem__(self, index: int) -> int:
        return self.pool.submit(lambda: 2 * index).result()


class Placed(Items):
    """Where its samples are made: in the trainer, and what get_worker_info() says there."""

    def __getitem__(self, index: int) -> tuple[bool, bool]:
        return os.getpid() == TRAINER, get_worker_info() is None


def test_list_that_samples_write_is_the_loops(daemon):
    dataset = Seeing()
    with PrefetchLoader(dataset, 4) as loader:
        with pytest.warns(UserWarning, match=r"change dataset\.seen\. As num_workers is 0.*num_workers=1 makes them"):
            assert torch.cat(list(loader)).tolist() == list(range(16))
        assert dataset.seen == list(range(16))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(loader)
            # Another loader of it knows.
            with PrefetchLoader(dataset, 4) as other:
                list(other)
        assert dataset.seen == 3 * list(range(16))


def test_samples_that_write_seldom_are_found_later(daemon):
    dataset = SeldomSeeing()
    with PrefetchLoader(dataset, 4, buffer=4) as loader:
        with pytest.warns(UserWarning, match=r"change dataset\.seen"):  # noqa: PT031 - in one of the epochs
            for _ in range(3):
                assert torch.cat(list(loader)).tolist() == list(range(16))
        dataset.seen.clear()
        list(loader)
        assert dataset.seen == list(range(8, 16))


def test_change_within_an_epoch_is_seen_by_the_next_batch(daemon):
    dataset = Items()
    warned = pytest.warns(UserWarning, match=r"dataset\.scale was changed within")
    with PrefetchLoader(dataset, 4) as loader, warned:
        found = []
        for step, batch in enumerate(loader):
            found += batch.tolist()
            if step == 1:
                dataset.scale = 10
        assert found == [*range(8), *range(80, 160, 10)]


def test_ordinary_datasets_are_made_by_workers(daemon):
    with PrefetchLoader(Placed(), 4) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")
        for in_trainer, no_info in loader:
            assert not in_trainer.any()
            assert no_info.all(), "as in the trainer"


def test_thread_pool_moves_the_loader_into_the_trainer(daemon):
    """The smallest program of a library whose threads no fork has; it cannot be pickled."""
    with (
        PrefetchLoader(Pooled(), 4) as loader,
        pytest.warns(
            UserWarning, match=r"no progress in a fork .*ThreadPoolExecutor.*in this process, as by DataLoader"
        ),
    ):
        assert torch.cat(list(loader)).tolist() == list(range(0, 32, 2))


MODULE = """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(1)
pool.submit(int).result()


class Data:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return pool.submit(lambda: 2 * index).result()
"""

SCRIPT = """
import os
import pooled
import torch
from prefetchd_client import PrefetchLoader

with PrefetchLoader(pooled.Data(), 4) as loader:
    for _ in range(2):
        print(torch.cat(list(loader)).tolist())
    print(loader.stats().get("inline", False))
"""


@pytest.mark.slow
@pytest.mark.executed
def test_program_that_can_be_pickled_gets_an_interpreter(daemon, tmp_path):
    (tmp_path / "pooled.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, env=daemon.environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [str(list(range(0, 16, 2)))] * 2 + ["False"], done.stderr
    assert "an interpreter of their own" in done.stderr


@pytest.mark.slow
def test_stuck_worker_is_explained_early_where_workers_were_asked_for(daemon, capfd):
    """DataLoader hangs there, too."""
    loader = PrefetchLoader(Pooled(), 4, num_workers=1, timeout=20)
    with loader, pytest.raises(RuntimeError, match="timed out after 20"):
        next(iter(loader))
    assert "PREFETCHD_START=exec" in capfd.readouterr().err
