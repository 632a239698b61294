"""Validation: the second epoch's batches are those of the first, and are not made again."""

from __future__ import annotations

import os
import signal

import pytest
from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import equal
from tests.scenario.lookback_trainer import Told
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import is_gone, stream_when, until

BATCH = 4


def kept(loader):
    """The batches of an epoch, copied: the loop keeps none."""
    return [[each.clone() for each in batch] for batch in loader]


def expected(tmp_path):
    return epoch_batches(Told(tmp_path / "oracle"), 0, batch_size=BATCH)


@pytest.mark.parametrize("how", ["argument", "attribute"])
def test_each_batch_is_made_once(daemon, tmp_path, how):
    dataset = Told(tmp_path / "calls")
    if how == "attribute":
        dataset.deterministic = True
    declared = True if how == "argument" else None
    with PrefetchLoader(dataset, batch_size=BATCH, deterministic=declared, buffer=120, seed=0) as loader:
        epochs = [kept(loader) for _ in range(3)]
        assert all(equal(epoch, expected(tmp_path)) for epoch in epochs)
        assert loader.stats()["private_copies"] == 0
        assert len(dataset.steps()) == len(dataset), "none was made twice"
        assert loader.state_dict()["epoch"] == 3


def test_what_the_loop_has_written_to_is_made_again(daemon, tmp_path):
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, deterministic=True, buffer=120, seed=0) as loader:
        for step, batch in enumerate(loader):
            if step == 3:
                batch[1].fill_(7.0)
        del batch
        assert equal(kept(loader), expected(tmp_path))
        steps = dataset.steps()
        assert {step for step in steps if steps.count(step) > BATCH} == {3}


def test_a_daemon_that_dies_between_two_epochs_takes_none_of_it_along(daemon, tmp_path):
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, deterministic=True, buffer=120, seed=0) as loader:
        first = kept(loader)
        pid = daemon.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid), "the daemon is dead")
        assert equal(kept(loader), first)
        assert equal(kept(loader), expected(tmp_path))
        assert len(dataset.steps()) == len(dataset)


def test_the_next_run_finds_the_epoch(daemon, tmp_path):
    dataset = Told(tmp_path / "calls")
    for run in range(2):
        with PrefetchLoader(
            dataset, batch_size=BATCH, deterministic=True, buffer=120, seed=0, stream="validation"
        ) as loader:
            assert equal(kept(loader), expected(tmp_path)), run
        stream_when(daemon, "validation", lambda stream: not stream["consumers"], "the trainer is gone")
    assert len(dataset.steps()) == len(dataset)


def test_two_iterators_at_once(daemon, tmp_path):
    with PrefetchLoader(Told(tmp_path / "calls"), batch_size=BATCH, deterministic=True, buffer=120, seed=0) as loader:
        for one, other in zip(loader, loader):
            assert equal([one], [other])
        assert equal(kept(loader), expected(tmp_path))
