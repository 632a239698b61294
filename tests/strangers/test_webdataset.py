"""webdataset: its WebLoader over tar files, shards by worker, epochs of a given length, batches made anew."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_webdataset", "webdataset", tmp_path_factory.mktemp("webdataset"))


@pytest.mark.parametrize(
    "part", ["trained", "batched_anew", "by_workers", "with_epochs", "shuffled_by_seed", "shuffled"]
)
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()
