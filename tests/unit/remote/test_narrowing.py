"""Small values travel as 16 bits, and each byte arrives."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prefetchd.remote import narrowing
from prefetchd.remote.narrowing import BLOCK_BYTES, Packed, pack, unpack
from tests.budgets import tries


def sent_bytes(packed: Packed) -> int:
    return packed.wide.nbytes + (packed.narrow.nbytes if packed.narrow is not None else 0)


def arrived(packed: Packed) -> bytes:
    target = bytearray(b"\xee" * (packed.payload_bytes + 64))
    unpack(packed, target)
    assert target[packed.payload_bytes :] == b"\xee" * 64
    return bytes(target[: packed.payload_bytes])


@pytest.mark.parametrize("most", [50_000, 65_535])
def test_tokens_take_a_quarter(most):
    tokens = np.random.default_rng(0).integers(0, most, 1 << 17, endpoint=True)
    payload = np.concatenate([np.zeros(192, np.uint8), tokens.view(np.uint8), np.full(5, 7, np.uint8)])
    packed = pack(payload)
    assert sent_bytes(packed) < 0.32 * payload.nbytes
    assert arrived(packed) == payload.tobytes()


@pytest.mark.parametrize("value", [-1, 1 << 16])
def test_values_that_do_not_fit_stay_wide(value):
    values = np.full(4 * BLOCK_BYTES // 8, 3, np.int64)
    values[9000] = value
    packed = pack(values.view(np.uint8))
    assert list(packed.is_narrow) == [1, 0, 1, 1]
    assert arrived(packed) == values.tobytes()


@pytest.mark.parametrize("payload_bytes", [0, 10, BLOCK_BYTES - 1, 9 * BLOCK_BYTES])
def test_pictures_and_small_batches_are_not_copied(payload_bytes):
    payload = np.random.default_rng(0).integers(1, 256, payload_bytes, np.uint8)
    packed = pack(payload)
    assert packed.wide is payload
    assert arrived(packed) == payload.tobytes()


@given(st.lists(st.sampled_from([-1, 0, 65_535, 65_536, 1 << 62]), max_size=40), st.binary(max_size=40))
@tries(100)
def test_each_byte_arrives(values, tail):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrowing, "BLOCK_VALUES", 2)
        patch.setattr(narrowing, "BLOCK_BYTES", 16)
        payload = np.frombuffer(np.array(values, np.int64).tobytes() + tail, np.uint8)
        assert arrived(pack(payload)) == payload.tobytes()
