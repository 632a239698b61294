"""Whose states a loader takes without a word."""

from __future__ import annotations

import warnings

import pytest
from prefetchd_client.loader_state import from_state, to_state

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
