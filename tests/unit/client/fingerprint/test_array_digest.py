"""Content is digested in pieces, which a signal can come between, and the digest is that of the whole."""

from __future__ import annotations

import signal

import numpy as np
import pytest
import torch
import xxhash
from prefetchd_client.fingerprint import array_digest
from prefetchd_client.fingerprint.array_digest import array_values, content_digest, tensor_values

PIECE_BYTES = 4096
NUMBERS = np.arange(64 * PIECE_BYTES // 8)
LARGE = {
    "array": lambda: array_values(NUMBERS),
    "transposed array": lambda: array_values(NUMBERS.reshape(64, -1).T),
    "every other row": lambda: array_values(NUMBERS.reshape(64, -1)[::2]),
    "tensor": lambda: tensor_values(torch.from_numpy(NUMBERS)),
    "memory": lambda: content_digest(NUMBERS),
}


class Interrupted:
    """A digest during whose second piece somebody presses Ctrl-C."""

    updates = 0

    def update(self, piece) -> None:
        Interrupted.updates += 1
        assert memoryview(piece).nbytes <= PIECE_BYTES
        if Interrupted.updates == 2:
            signal.raise_signal(signal.SIGINT)

    def digest(self) -> bytes:
        return b""


@pytest.mark.parametrize("digest", LARGE.values(), ids=LARGE)
def test_a_signal_comes_between_two_pieces(monkeypatch, digest):
    monkeypatch.setattr(array_digest, "_PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(Interrupted, "updates", 0)
    monkeypatch.setattr(array_digest.xxhash, "xxh3_128", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        digest()
    assert Interrupted.updates == 2, "the others are not digested any more"


@pytest.mark.parametrize("digest", LARGE.values(), ids=LARGE)
def test_it_does_not_depend_on_the_pieces(monkeypatch, digest):
    whole = digest()
    monkeypatch.setattr(array_digest, "_PIECE_BYTES", PIECE_BYTES + 24)
    assert digest() == whole


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.float64(3).reshape(()),
        np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(5)[::-1],
        np.array(["a", "bcd"])[::-1],
    ],
    ids=["empty", "no dimension", "permuted", "backwards", "strings"],
)
def test_it_is_that_of_the_bytes_in_order(array):
    assert array_values(array)[-1] == xxhash.xxh3_128_digest(np.ascontiguousarray(array).tobytes())
