"""Every store with every source of progress: the same batches, whoever takes them, whatever dies."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from prefetchd_client import PrefetchLoader

from prefetchd.wire.stream_spec import STORES
from tests.contract.declared_daemons import PROGRESS, Declared, ram_disk
from tests.scenario.datasets import equal
from tests.scenario.declared_datasets import labelled

LINES = """
dataset = "tests.scenario.declared_datasets:labelled"
batch_size = 4
shuffle = true
seed = 5
buffer = 8
"""
STEPS = 6


@pytest.fixture(params=itertools.product(STORES, PROGRESS), ids="-".join)
def declared(request, daemon, tmp_path):
    with ram_disk() as disk:
        yield Declared(daemon, tmp_path, disk, *request.param, LINES)
        daemon.stop_and_check()


@pytest.fixture(scope="module")
def expected():
    """Three epochs as a DataLoader's user gets them here, without any daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFETCHD_INLINE", "1")
        with PrefetchLoader(labelled(), batch_size=4, shuffle=True, seed=5) as loader:
            return [list(loader) for _ in range(3)]


def test_attached_trainers_get_the_batches_of_a_loader(declared, expected):
    declared.start()
    with declared.attach() as loader:
        for epoch in range(2):
            declared.at(epoch, 0)
            assert all(map(equal, loader, expected[epoch]))
        assert len(loader) == STEPS


def test_it_is_filled_before_anybody_comes_and_no_further(declared):
    declared.start()
    ring = declared.when_ready(8)["ring"]
    assert (ring["ready"], ring["slots"]) == (8, 8)


def test_held_batches_stay_as_they_are(declared, expected):
    declared.start()
    with declared.attach() as loader:
        held = []
        for batch in loader:
            held.append(batch)
            batch["label"].add_(0)
        declared.at(1, 0)
        for _ in loader:
            pass
        assert all(map(equal, held, expected[0]))


def test_what_a_holder_writes_reaches_nobody_else(declared, expected):
    declared.start()
    with declared.attach() as loader:
        for batch in loader:
            batch["image"].zero_()
    with declared.attach() as loader:
        assert all(map(equal, loader, expected[0]))


def test_a_killed_daemon_loses_no_ready_batch(declared, expected):
    declared.start()
    before = declared.when_ready(8)
    assert before["produced_batches"] == 8
    declared.kill()
    declared.start()
    after = declared.when_ready(8)
    assert after["produced_batches"] == 0
    with declared.attach() as loader:
        assert all(map(equal, loader, expected[0]))


def test_another_fingerprint_begins_anew(declared):
    declared.start()
    declared.when_ready(8)
    declared.kill()
    declared.declare(LINES.replace("seed = 5", "seed = 6"))
    declared.start()
    assert declared.when(lambda stream: stream["produced_batches"] == 8)["seed"] == 6
    with declared.attach() as loader:
        (first, *_) = list(loader)
    torch.manual_seed(6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFETCHD_INLINE", "1")
        with PrefetchLoader(labelled(), batch_size=4, shuffle=True, seed=6) as loader:
            assert equal(first, next(iter(loader)))


def test_nothing_but_files_outlives_an_orderly_end(declared):
    declared.start()
    declared.when_ready(8)
    declared.daemon.command("stop")
    left = sorted(os.listdir(declared.ram_disk))
    if declared.store == "files":
        assert left == [*declared.files(), "stream.json"]
        assert len(declared.files()) == 8
    else:
        assert left == []
