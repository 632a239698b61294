"""Epochs are made ahead of time where that changes no sample, and status says why where they are not."""

from __future__ import annotations

import multiprocessing as mp
from pathlib import Path

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset, IterableDataset

from prefetchd.status.snapshot import read_report
from tests.scenario.waiting import ring_when, stream_when, until

STEPS = 4


class Leveled(Dataset[int]):
    """Each sample is the value at the time when it was made."""

    def __init__(self) -> None:
        self.level = mp.Value("i", 0)

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> int:
        return self.level.value


class FromFile(Dataset[int]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> int:
        return int(self.path.read_text())


class Numbers(IterableDataset[int]):
    def __iter__(self):
        return iter(range(4 * STEPS))


def levels(loader) -> set[int]:
    return set(torch.cat(list(loader)).tolist())


def test_status_names_the_shared_value(daemon):
    dataset = Leveled()
    with PrefetchLoader(dataset, 4, num_workers=1, stream="leveled") as loader:
        assert levels(loader) == {0}
        found = stream_when(daemon, "leveled", lambda stream: stream["not_ahead"], "it is held back")
        assert found["not_ahead"] == "dataset.level is a shared value"
        assert found["produced_batches"] == STEPS, "nothing of the next epoch"
        assert "epochs are not prefetched: dataset.level is a shared value" in daemon.command("status").stdout


def test_run_ahead_true_makes_the_next_epoch(daemon):
    dataset = Leveled()
    with PrefetchLoader(dataset, 4, num_workers=1, stream="leveled", run_ahead=True) as loader:
        assert levels(loader) == {0}
        found = stream_when(daemon, "leveled", lambda stream: stream["produced_batches"] >= 2 * STEPS, "the next epoch")
        assert found["not_ahead"] == ""


def test_run_ahead_false_makes_no_next_epoch(daemon):
    with PrefetchLoader(torch.arange(4 * STEPS), 4, num_workers=1, stream="held", run_ahead=False) as loader:
        for _ in range(2):
            assert len(list(loader)) == STEPS
        found = stream_when(daemon, "held", lambda stream: stream["consumed_batches"] == 2 * STEPS, "all are told")
        assert (found["produced_batches"], found["not_ahead"]) == (2 * STEPS, "run_ahead=False")


def test_persistent_iterable_dataset_begins_with_iter(daemon):
    with PrefetchLoader(Numbers(), 4, num_workers=1, persistent_workers=True, stream="numbers") as loader:
        assert len(list(loader)) == STEPS
        found = stream_when(daemon, "numbers", lambda stream: stream["consumed_batches"] == STEPS, "all are told")
        assert found["produced_batches"] == STEPS
        assert "persistent_workers=True" in found["not_ahead"]


def test_ring_with_live_state_goes_with_its_loader(daemon):
    """No other loader, and no other run, may have these batches."""
    with PrefetchLoader(Leveled(), 4, num_workers=1) as loader:
        assert levels(loader) == {0}
    until(lambda: not read_report(daemon.paths).snapshot["streams"], "the stream is gone")


def test_batches_of_a_file_are_ready_and_made_again_if_it_changes(daemon, tmp_path):
    path = tmp_path / "level"
    path.write_text("0")
    with PrefetchLoader(FromFile(path), 4, num_workers=1, stream="file", buffer=8) as loader:
        for level in (0, 0, 1):
            ring_when(daemon, "file", lambda ring: ring["ready"] == 8, "the ring is full, across the end of an epoch")
            path.write_text(str(level))
            assert levels(loader) == {level}


def test_unchanged_files_are_not_read_again(daemon, tmp_path):
    path = tmp_path / "level"
    path.write_text("7")
    with PrefetchLoader(FromFile(path), 4, num_workers=1, stream="file", buffer=2 * STEPS) as loader:
        ring_when(daemon, "file", lambda ring: ring["ready"] == 2 * STEPS, "the ring is full")
        before = stream_when(daemon, "file")["produced_batches"]
        assert levels(loader) == {7}
        after = stream_when(daemon, "file", lambda stream: stream["consumed_batches"] == STEPS, "all are told")
        assert after["produced_batches"] <= before + STEPS, "only what follows"


@pytest.mark.usefixtures("executed")
def test_shared_tensor_holds_epochs_back_without_a_fork(daemon):
    dataset = torch.zeros(4 * STEPS, dtype=torch.int64).share_memory_()
    with PrefetchLoader(dataset, 4, num_workers=1, stream="tensor") as loader:
        assert levels(loader) == {0}
        found = stream_when(daemon, "tensor", lambda stream: stream["not_ahead"], "it is held back")
        assert found["not_ahead"] == "dataset is a shared tensor"
