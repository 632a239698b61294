"""PyTorch Geometric: its loaders that need no C++ parts, its samplers, and loaders of two kinds in one."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_pyg", "torch_geometric", tmp_path_factory.mktemp("pyg"))


@pytest.mark.parametrize(
    "part", ["trained", "shuffled", "batches", "of_nodes", "of_events", "of_random_nodes", "by_class"]
)
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()
