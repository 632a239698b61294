"""Whose states a loader takes without a word."""

from __future__ import annotations

import dataclasses
import json
import warnings

import pytest
from prefetchd_client.loader.loader_state import from_state, to_state

from prefetchd.wire.stream_spec import StreamSpec


def spec(**changes):
    return StreamSpec(fingerprint="0" * 32, name="n", seed=0, length=40, batch_size=4, **changes)


@pytest.mark.parametrize("order", ["sampler", "shuffle"])
def test_another_rank_s_state_is_as_good_as_one_s_own(order):
    """Lightning writes the checkpoint on rank 0, and all ranks load it."""
    state = to_state(spec(order=order, rank=0, world_size=2), 1, 3, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        place = from_state(spec(order=order, rank=1, world_size=2), state)
    assert (place.epoch, place.step) == (1, 3)


def test_a_sampler_of_another_number_of_ranks_is_told():
    state = to_state(spec(order="sampler", rank=0, world_size=2), 1, 3, None)
    with pytest.warns(UserWarning, match="world_size was 2, is 3"):
        from_state(spec(order="sampler", rank=0, world_size=3), state)


@pytest.mark.parametrize("order", ["sequential", "shuffle", "sampler"])
def test_a_state_is_as_small_after_any_number_of_steps_and_for_any_number_of_samples(order):
    small = to_state(spec(order=order), 1, 1, None)
    large = to_state(dataclasses.replace(spec(order=order), length=10**9), 1, 9, None)
    late = to_state(dataclasses.replace(spec(order=order), length=10**9), 9, 10**8 - 1, None)
    digits = len(str(10**9)) - len(str(40))
    assert len(json.dumps(large)) <= len(json.dumps(small)) + digits
    assert len(json.dumps(late)) <= len(json.dumps(large)) + len(str(10**8 - 1)) - 1
    assert json.loads(json.dumps(late)) == late
