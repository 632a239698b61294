"""Keys of a batch as bytes: what the sampler gave comes back in value and type."""

from __future__ import annotations

import enum
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prefetchd.plan.keyed_plan import KeyedPlan
from prefetchd.plan.keys import HEAD, digest, pack_batch, pack_one, unpack
from prefetchd.plan.seeds import batch_seed, sample_seed
from prefetchd.wire.stream_spec import StreamSpec
from tests.budgets import tries


class Color(enum.IntEnum):
    RED = 1


class Crop(NamedTuple):
    index: int
    x: float


ODD = {
    "bools": [True, False],
    "enums": [Color.RED, Color.RED],
    "numpy": [np.int64(3), np.int64(4)],
    "huge": [1 << 70, -(1 << 70)],
    "strings": ["a", "b"],
    "tuples": [(1, "a"), (2, "b")],
    "named tuples": [Crop(1, 0.5)],
    "mixed": [1, "a"],
    "a tuple": (1, 2),
    "a range": range(3, 6),
    "nothing": [],
}


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=50), st.integers(0, (1 << 64) - 1))
@tries(100)
def test_ints_come_back(keys, first):
    blob, samples = pack_batch(keys, first)
    assert unpack(blob) == (keys, keys, first)
    assert samples == len(keys)
    assert len(blob) == HEAD.size + 8 * len(keys)


@pytest.mark.parametrize("keys", ODD.values(), ids=ODD)
def test_whatever_else_comes_back_as_it_was(keys):
    blob, samples = pack_batch(keys, 7)
    given, rows, first = unpack(blob)
    assert (given, first, samples) == (keys, 7, len(keys))
    assert type(given) is type(keys)
    assert list(map(type, rows)) == list(map(type, keys))


def test_an_iterator_is_used_up_once():
    blob, samples = pack_batch(iter("abc"), 0)
    assert (samples, unpack(blob)[0]) == (3, ["a", "b", "c"])
    with pytest.raises(TypeError):
        pack_batch(5, 0)


@pytest.mark.parametrize("key", [5, -5, 1 << 70, True, "a", (1, 2), [1, 2], None])
def test_one_key_comes_back(key):
    given, rows, first = unpack(pack_one(key, 9))
    assert (given, rows, first) == ([key], [key], 9)
    assert type(rows[0]) is type(key)


def test_digests_tell_batches_apart():
    blobs = [pack_batch(keys, first)[0] for keys in ([1, 2], [2, 1], ["1", "2"]) for first in (0, 2)]
    assert len({digest(blob) for blob in blobs}) == len(blobs)
    assert all(0 < digest(blob) < 1 << 64 for blob in blobs)


def test_a_keyed_plan_seeds_by_ordinals_that_no_other_rank_has():
    plans = [KeyedPlan(StreamSpec("0" * 32, 5, "sampler", -1, 3, rank=rank, world_size=2)) for rank in (0, 1)]
    seen = []
    for rank, plan in enumerate(plans):
        plan.use((4, 2), pack_batch(["a", (1, 2), 9], 6)[0])
        planned = plan.rows(4, 2, 0, 3)
        assert planned.indices.tolist() == ["a", (1, 2), 9]
        assert planned.ordinals.tolist() == [12 + rank, 14 + rank, 16 + rank]
        assert planned.seeds.tolist() == [sample_seed(5, 4, ordinal) for ordinal in planned.ordinals.tolist()]
        assert plan.rows(4, 2, 1, 2).indices.tolist() == [(1, 2)]
        assert plan.row_count(4, 2) == 3
        assert plan.batch_seed(4, 2) == batch_seed(5, 4, 2, rank)
        assert {plan.substitute(4, ordinal, 1) for ordinal in range(50)} == {"a", (1, 2), 9}
        seen += planned.ordinals.tolist()
    assert len(set(seen)) == 6


def test_the_keys_of_another_batch_are_not_taken_for_this_one_s():
    plan = KeyedPlan(StreamSpec("0" * 32, 5, "sampler", -1, 3))
    plan.use((0, 0), pack_batch([1], 0)[0])
    plan.use((0, 0), pack_batch([2], 0)[0])
    assert plan.rows(0, 0, 0, 1).indices.tolist() == [2]
    with pytest.raises(AssertionError):
        plan.rows(0, 1, 0, 1)
