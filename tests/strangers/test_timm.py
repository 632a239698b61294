"""timm: its loaders, of one epoch and of many, augmented, of several sizes; training, validating, resuming."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_timm", "timm", tmp_path_factory.mktemp("timm"))


@pytest.mark.parametrize(
    "part",
    ["trained_and_resumed", "shuffled", "of_many_epochs", "of_many_epochs_in_order", "augmented", "of_scheduled_sizes"],
)
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()
