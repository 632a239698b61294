"""Which tensors are nothing but their numbers."""

from __future__ import annotations

import warnings

import pytest
import torch

from prefetchd.workers.plain_tensors import is_plain_tensor


def marked() -> torch.Tensor:
    tensor = torch.zeros(2)
    tensor.mark = "an attribute of its own"
    return tensor


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are deprecated
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


PLAIN = {
    "empty": torch.empty(0, 3),
    "a view": torch.arange(12).reshape(3, 4)[:, 1:3],
    "complex": torch.zeros(2, dtype=torch.complex64),
}
OTHERS = {
    "sparse": torch.eye(3).to_sparse(),
    "elsewhere": torch.empty(2, device="meta"),
    "quantized": quantized(),
    "with a gradient": torch.zeros(2, requires_grad=True),
    "conjugated": torch.zeros(2, dtype=torch.complex64).conj(),
    "negated": torch.zeros(2, dtype=torch.complex64).conj().imag,
    "with an attribute": marked(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_these_are(name):
    assert is_plain_tensor(PLAIN[name])


@pytest.mark.parametrize("name", OTHERS)
def test_these_are_not(name):
    assert not is_plain_tensor(OTHERS[name])
