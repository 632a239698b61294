"""What is called a difference, and where it is said to be."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from prefetchd_client.script_check.differences import Difference, difference

Pair = collections.namedtuple("Pair", ["one", "other"])


class Graph:
    """As of a library: it does not say when two are equal."""

    def __init__(self, edges):
        self.edges = edges


EQUAL = [
    lambda: torch.arange(3),
    lambda: torch.tensor([1.0, float("nan")]),
    lambda: np.array([1.0, float("nan")]),
    lambda: np.array(["a", "b"]),
    lambda: {"a": [torch.zeros(2), "text"], "b": Pair(1, None)},
    lambda: torch.eye(2).to_sparse(),
    lambda: Graph(torch.ones(2)),
]


@pytest.mark.parametrize("batch", EQUAL)
def test_equal_batches_have_none(batch):
    assert difference(batch(), batch()) is None


@pytest.mark.parametrize(
    ("theirs", "ours", "text", "is_of_values"),
    [
        ([1, 2], (1, 2), "batch is a tuple, with DataLoader a list", False),
        (torch.zeros(2), torch.zeros(3), "batch has the shape (3,), with DataLoader (2,)", False),
        (
            {"x": torch.zeros(2)},
            {"x": torch.zeros(2, dtype=torch.int64)},
            "batch['x'] has the dtype torch.int64, with DataLoader torch.float32",
            False,
        ),
        ({"x": 1}, {"y": 1}, "batch has the keys ['y'], with DataLoader ['x']", False),
        ([1], [1, 2], "batch has 2 parts, with DataLoader 1", False),
        (Pair(1, ["a"]), Pair(1, ["b"]), "batch[1][0] is 'b', with DataLoader 'a'", True),
        ([torch.zeros(2)], [torch.ones(2)], "batch[0] has other values", True),
        (np.zeros(2), np.ones(2), "batch has other values", True),
        (Graph(torch.zeros(2)), Graph(torch.ones(2)), "batch['edges'] has other values", True),
        (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse(), "batch has other values", True),
    ],
)
def test_the_first_difference_is_named_with_its_place(theirs, ours, text, is_of_values):
    assert difference(theirs, ours) == Difference(text, is_of_values)
