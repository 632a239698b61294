"""Whose share of an epoch it is, and where another number of ranks goes on."""

from __future__ import annotations

import dataclasses
import json
import warnings

import pytest
import torch
from prefetchd_client.loader import ranks, stream_request
from prefetchd_client.loader.loader_state import LoadedState, from_state, to_state
from prefetchd_client.loader.ranks import process_rank, resolve_rank
from prefetchd_client.loader.stream_request import resolve_seed

from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import Assume
from prefetchd.wire.stream_spec import StreamSpec

SPEC = StreamSpec("0" * 32, 5, "shuffle", 1000, 4, world_size=1)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def torchrun_says(monkeypatch, rank, size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)


def test_a_share_is_asked_for(monkeypatch):
    assert resolve_rank(None, None) == (0, 1)
    torchrun_says(monkeypatch, "3", "8")
    monkeypatch.setattr(ranks.torch.distributed, "is_initialized", lambda: True)
    assert resolve_rank(None, None) == (0, 1)
    assert resolve_rank(1, 2) == (1, 2)
    for given in ({"rank": 0, "world_size": None}, {"rank": None, "world_size": 2}):
        with pytest.raises(CallerError, match="together"):
            resolve_rank(**given)
    for given in ({"rank": "auto", "world_size": 2}, {"rank": "0", "world_size": 2}, {"rank": "", "world_size": None}):
        with pytest.raises(CallerError, match='allowed: rank="auto" alone'):
            resolve_rank(**given)


def test_torchrun_s_variables_count_together(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert process_rank() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert process_rank() == resolve_rank("auto", None) == (3, 8)


@pytest.mark.parametrize(("rank", "size"), [("8", "8"), ("-1", "2"), ("a", "2"), ("", ""), ("0", "0")])
def test_what_cannot_be_torchrun_s_is_not_taken_for_it(monkeypatch, rank, size):
    torchrun_says(monkeypatch, rank, size)
    assert process_rank() == resolve_rank("auto", None) == (0, 1)


def test_a_group_of_torch_counts_before_the_variables(monkeypatch):
    torchrun_says(monkeypatch, "3", "8")
    monkeypatch.setattr(ranks.torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(ranks.torch.distributed, "get_world_size", lambda: 2)
    assert process_rank() == resolve_rank("auto", None) == (1, 2)


def test_processes_that_share_nothing_have_orders_of_their_own_unless_they_are_seeded(monkeypatch):
    torchrun_says(monkeypatch, "3", "8")
    with torch.random.fork_rng():
        torch.seed()
        monkeypatch.setattr(stream_request, "_SEED_OF_NOBODY", torch.initial_seed())
        assert resolve_seed(None) == (3, "default")
        torch.manual_seed(5)
        assert resolve_seed(None) == (5, "torch")


@pytest.mark.parametrize("rank", range(2))
def test_processes_that_share_an_epoch_have_one_order_however_torch_is_seeded_in_each(monkeypatch, rank):
    """Found as samples that no rank has seen: timm seeds torch with its seed and the rank."""
    torchrun_says(monkeypatch, str(rank), "2")
    with torch.random.fork_rng():
        torch.manual_seed(42 + rank)
        assert resolve_seed(None, 2) == (0, "default")
    assert resolve_seed(7, 2) == (7, "argument")


def test_a_seed_that_is_given_is_everybody_s():
    assert resolve_seed(7) == (7, "argument")


def of(world_size, rank=0, **changes) -> StreamSpec:
    return dataclasses.replace(SPEC, world_size=world_size, rank=rank, **changes)


@pytest.mark.parametrize(
    ("was", "step", "is_", "expected"), [(2, 6, 3, 4), (3, 4, 1, 12), (1, 12, 4, 3), (4, 0, 7, 0), (5, 9, 5, 9)]
)
def test_other_ranks_go_on_at_the_same_place_of_the_epoch(was, step, is_, expected):
    for rank in range(was):
        state = json.loads(json.dumps(to_state(of(was, rank), 3, step, None)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert from_state(of(is_, is_ - 1), state) == LoadedState(3, expected)


def test_where_that_place_is_within_a_batch_some_come_again_and_that_is_said():
    with pytest.warns(UserWarning, match="1 of 5 batches come again"):
        assert from_state(of(2), to_state(of(1), 0, 5, None)) == LoadedState(0, 2)


def test_a_sampler_s_shares_are_its_own():
    with pytest.warns(UserWarning, match="world_size was 2, is 4"):
        assert from_state(of(4, order="sampler"), to_state(of(2, order="sampler"), 0, 6, None)).step == 6


def test_states_of_generators_come_back():
    state = json.loads(json.dumps(to_state(of(1, order="sampler"), 1, 2, Assume(1, 4, (b"\x00\xff", b"")))))
    assert from_state(of(1, order="sampler"), state) == LoadedState(1, 2, (b"\x00\xff", b""), sampler_epoch=4)
    for bad in (["%"], [5], ["a"]):
        with pytest.raises(CallerError, match="generators"):
            from_state(of(1, order="sampler"), {**state, "generators": bad})
    for bad in (-2, 1.5, "4", 1 << 80):
        with pytest.raises(CallerError, match="the sampler's epoch"):
            from_state(of(1, order="sampler"), {**state, "sampler_epoch": bad})
