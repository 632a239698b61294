"""A fingerprint that is taken in the trainer: the same as a fork's, or none."""

import numpy as np
import pytest
import torch
from prefetchd_client.fingerprint import quick_walk
from prefetchd_client.fingerprint.quick_walk import QuickWalks, TooLong
from prefetchd_client.fingerprint.walk import fingerprint
from torch.utils.data import TensorDataset

SMALL = {
    "numbers": list(range(5000)),
    "texts": {str(number): "a" * number for number in range(50)},
    "tensors": TensorDataset(torch.arange(100.0)),
    "array": np.arange(1000),
    "sparse": torch.eye(4).to_sparse(),
    "function": lambda value: value + 1,
    "nothing": [(), [], {}],
}


@pytest.fixture
def patient(monkeypatch) -> None:
    """However slow the machine is just now."""
    monkeypatch.setattr(quick_walk, "WITHIN_S", 3600.0)


def test_it_is_the_same(patient):
    assert fingerprint(SMALL, walks=QuickWalks()) == fingerprint(SMALL)


@pytest.mark.parametrize(
    "large",
    [
        np.zeros(quick_walk.MOST_BYTES + 1, np.uint8),
        torch.zeros(quick_walk.MOST_BYTES // 4 + 1),
        ["a" * 1000] * (quick_walk.MOST_BYTES // 1000),
        [bytes(1 << 20)] * 100,
        dict.fromkeys(range(quick_walk.MOST_BYTES // 1000), "a" * 1000),
        [[np.zeros(1 << 20, np.uint8)] for _ in range(33)],
    ],
    ids=["array", "tensor", "texts", "long bytes", "dict", "many arrays"],
)
def test_what_is_large_is_left_to_the_fork(patient, large):
    with pytest.raises(TooLong):
        fingerprint({"large": large}, walks=QuickWalks())


def test_what_is_large_together_is_left_to_the_fork(patient):
    halves = {name: np.zeros(quick_walk.MOST_BYTES // 2 + 1, np.uint8) for name in ("one", "other")}
    with pytest.raises(TooLong):
        fingerprint(halves, walks=QuickWalks())


def test_what_takes_long_is_left_to_the_fork(monkeypatch):
    monkeypatch.setattr(quick_walk, "WITHIN_S", 0.0)
    with pytest.raises(TooLong):
        fingerprint({"part": object}, walks=QuickWalks())
