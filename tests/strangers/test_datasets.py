"""datasets: tables in each format, transformed, split; streams of files, dealt to workers, shuffled, resumed."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_datasets", "datasets", tmp_path_factory.mktemp("datasets"))


@pytest.mark.parametrize("part", ["trained", "of_tables", "transformed_anew", "of_streams", "broken_off_and_resumed"])
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()
