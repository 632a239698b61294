"""MONAI: its datasets and loaders, in loops by hand and in its engines; what its random transforms draw."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_monai", "monai", tmp_path_factory.mktemp("monai"))


@pytest.mark.parametrize("part", ["trained", "by_engines", "of_datasets", "random"])
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()


def test_what_is_drawn_is_the_same_with_any_number_of_workers(runs):
    """Not what DataLoader gives: there it depends on their number."""
    none, one, two = runs.ours.results["drawn"]
    assert none == one == two
    first, second = none
    assert first != second
    assert [[shape for shape, _, _ in batch] for batch in first] == [
        [shape for shape, _, _ in batch] for batch in runs.theirs.results["drawn"][0][0]
    ]
