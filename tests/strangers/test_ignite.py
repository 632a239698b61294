"""ignite: engines with evaluators, early ends, epochs of another length, and deterministic ones that resume."""

from __future__ import annotations

import pytest

from tests.strangers.both_ways import run_both_ways


@pytest.fixture(scope="module")
def runs(strangers_daemon, tmp_path_factory):
    return run_both_ways(strangers_daemon, "train_ignite", "ignite", tmp_path_factory.mktemp("ignite"))


@pytest.mark.parametrize(
    "part", ["trained", "of_another_length", "resumed_in_order", "resumed_and_shuffled", "taken_by_hand"]
)
def test_it_is_the_same(runs, part):
    runs.assert_same(part)


def test_every_batch_was_ours(runs):
    runs.assert_no_iterator_of_torch()
