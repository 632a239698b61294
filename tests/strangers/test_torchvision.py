"""torchvision's references: classification, detection and segmentation, with their samplers and collation."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_torchvision", "torchvision", tmp_path_factory.mktemp("torchvision"))


@pytest.mark.parametrize("part", ["classified", "by_ranks", "augmented", "detected", "segmented"])
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()
