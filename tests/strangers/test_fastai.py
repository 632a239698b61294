"""fastai: its Learner on torch's loaders, ended early, searching a rate; and loaders of its own."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_fastai", "fastai", tmp_path_factory.mktemp("fastai"))


@pytest.mark.parametrize("part", ["fitted", "by_a_generator", "left_early", "rate_found", "of_its_own"])
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_torch_s_loaders_were_ours_and_its_own_are_none(runs):
    """Its own make torch's iterators themselves: docs/libraries.md says so."""
    assert runs.ours.begun.keys() == {"_FakeLoader"}
    assert runs.theirs.begun == runs.ours.begun | {"DataLoader": runs.theirs.begun["DataLoader"]}
