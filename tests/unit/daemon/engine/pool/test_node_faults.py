"""How batches are named that were handed out."""

from __future__ import annotations

from prefetchd.daemon.engine.pool.node_faults import ranges


def test_positions_in_a_row_are_one_range():
    assert ranges([(0, 3), (0, 7), (0, 8), (0, 9), (1, 0), (1, 1)], 9) == "epoch 0: 3, 7-9; epoch 1: 0-1"


def test_ranges_beyond_the_most_are_counted():
    assert ranges([(0, 1), (0, 3), (0, 5)], 2) == "epoch 0: 1, 3 and 1 more ranges"
