"""From arguments to a StreamSpec: seeds, buffers, orders, names and fingerprints, without asking any daemon."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client.loader import stream_request as stream_request_of
from prefetchd_client.loader.stream_request import (
    collate_additions,
    resolve_buffer,
    resolve_order,
    resolve_seed,
    stream_request,
)
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    default_convert,
)
from torch.utils.data._utils.collate import default_collate_fn_map

from prefetchd.wire.errors import CallerError
from prefetchd.wire.stream_spec import MINIMUM_SLOTS

DATASET = list(range(20))

ARGUMENTS = {
    "dataset": DATASET,
    "order": "sequential",
    "batch_size": 4,
    "drop_last": False,
    "collate_fn": None,
    "worker_init_fn": None,
    "num_workers": 0,
    "timeout": 0,
    "stream": None,
    "seed": 3,
    "buffer": None,
    "lookback": 0,
    "rank": 0,
    "world_size": 1,
    "on_error": "raise",
    "fingerprint_extra": None,
}


def request(**changes):
    return stream_request(**(ARGUMENTS | changes)).identified()


# --- seeds ---


@pytest.fixture
def torch_seed():
    """Seeds torch as a trainer does; before the next test it is unseeded."""
    return torch.manual_seed


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1])
def test_a_seed_that_is_given_is_taken(torch_seed, seed):
    torch_seed(99)
    assert resolve_seed(seed) == (seed, "argument")


@pytest.mark.parametrize("seed", [0, 1234, (1 << 32) - 1, 1 << 32, 20261127123456, (1 << 63) - 1])
def test_a_seed_that_a_person_gave_torch_is_taken(torch_seed, seed):
    torch_seed(seed)
    assert resolve_seed(None) == (seed, "torch")


def test_a_negative_seed_is_taken_too(torch_seed):
    torch_seed(-1)
    minus_one = resolve_seed(None)
    torch_seed(-2)
    assert minus_one[1] == "torch"
    assert minus_one != resolve_seed(None)


def test_a_seed_that_torch_made_up_is_not(torch_seed, monkeypatch):
    torch_seed(1 << 40)
    monkeypatch.setattr(stream_request_of, "_SEED_OF_NOBODY", 1 << 40)
    assert resolve_seed(None) == (0, "default")


def test_a_seed_that_was_there_before_us_is_taken_if_torch_does_not_make_such(torch_seed, monkeypatch):
    torch_seed(1234)
    monkeypatch.setattr(stream_request_of, "_SEED_OF_NOBODY", 1234)
    assert resolve_seed(None) == (1234, "torch")


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_out_of_range_is_told(seed):
    with pytest.raises(CallerError, match=f"seed={seed}; allowed: 0 to"):
        resolve_seed(seed)


def test_asking_for_the_seed_draws_nothing(torch_seed):
    torch_seed(5)
    before = torch.get_rng_state()
    resolve_seed(None)
    assert torch.equal(torch.get_rng_state(), before)


# --- buffers ---


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [(None, (0, 0)), (8, (0, 8)), ("4GiB", (4 << 30, 0)), ("1.5 MB", (1_500_000, 0)), ("4096", (4096, 0))],
)
def test_a_buffer_is_a_number_of_batches_or_bytes_with_a_unit(buffer, expected):
    assert resolve_buffer(buffer) == expected


@pytest.mark.parametrize("buffer", [0, -3, True, 2.5, "many", "4 XB", ""])
def test_any_other_buffer_is_told(buffer):
    with pytest.raises(CallerError, match="buffer"):
        resolve_buffer(buffer)


# --- orders ---


def test_the_orders_that_are_arithmetic():
    assert resolve_order(DATASET, SequentialSampler(DATASET), None, None) == "sequential"
    assert resolve_order(DATASET, SequentialSampler(DATASET), None, torch.Generator()) == "sequential"
    assert resolve_order(DATASET, RandomSampler(DATASET), None, None) == "shuffle"
    assert resolve_order(DATASET, RandomSampler(DATASET, num_samples=len(DATASET)), None, None) == "shuffle"
    assert resolve_order(DATASET, SequentialSampler(range(20)), None, None) == "sequential"
    assert resolve_order(DATASET, RandomSampler(range(20)), None, None) == "shuffle"


class OwnSequential(SequentialSampler):
    def __iter__(self):
        return reversed(range(20))


class OwnRandom(RandomSampler):
    def __iter__(self):
        return iter([0] * 20)


class Lengthless:
    """Its length is known once somebody has looked."""

    def __len__(self):
        raise ValueError("nobody has looked")


@pytest.mark.parametrize(
    ("sampler", "generator"),
    [
        (RandomSampler(DATASET, replacement=True), None),
        (RandomSampler(DATASET, num_samples=5), None),
        (RandomSampler(DATASET, generator=torch.Generator()), None),
        (RandomSampler(DATASET), torch.Generator()),
        (OwnSequential(DATASET), None),
        (OwnRandom(DATASET), None),
        (SequentialSampler(range(5)), None),
        (SequentialSampler(range(40)), None),
        (SequentialSampler(Lengthless()), None),
        (RandomSampler(range(5)), None),
        (RandomSampler(range(40)), None),
        (RandomSampler(range(5), num_samples=20), None),
        (SubsetRandomSampler([1, 2]), None),
        (WeightedRandomSampler([1.0, 2.0], 2), None),
        (BatchSampler(SequentialSampler(DATASET), 2, False), None),
        ([3, 1, 2], None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_order_that_only_its_sampler_knows_is_never_taken_for_another(sampler, generator):
    assert resolve_order(DATASET, sampler, None, generator) == "sampler"
    assert resolve_order(DATASET, SequentialSampler(DATASET), sampler, generator) == "sampler"


# --- requests ---


def test_every_argument_arrives_in_the_spec():
    spec = request(
        order="shuffle",
        batch_size=8,
        drop_last=True,
        num_workers=3,
        timeout=7,
        stream="s",
        seed=11,
        buffer="64MiB",
        lookback=2,
        rank=1,
        world_size=4,
    ).spec
    assert (spec.order, spec.length, spec.batch_size, spec.drop_last) == ("shuffle", 20, 8, True)
    assert (spec.workers, spec.timeout_s, spec.name, spec.lookback) == (3, 7.0, "s", 2)
    assert (spec.seed, spec.seed_source, spec.rank, spec.world_size) == (11, "argument", 1, 4)
    assert (spec.buffer_bytes, spec.buffer_batches, spec.minimum_slots) == (64 << 20, 0, MINIMUM_SLOTS)
    assert request(batch_size=None).spec.batch_size == 0


def test_only_a_stream_that_was_named_is_shared():
    assert request(stream="mine").shared
    assert not request().shared


@pytest.fixture(autouse=True)
def nothing_added_to_default_collate(monkeypatch):
    """Packages add to it when they are imported, whoever did that before in this process."""
    for kind in collate_additions():
        monkeypatch.delitem(default_collate_fn_map, kind)


@pytest.mark.parametrize(("batch_size", "own"), [(4, default_collate), (None, default_convert)])
def test_torch_s_own_choice_of_collation_is_the_default_one(batch_size, own):
    asked = request(batch_size=batch_size, collate_fn=own)
    assert asked.parts == {"dataset": DATASET, "collate_fn": None, "worker_init_fn": None}
    assert asked.spec.fingerprint == request(batch_size=batch_size).spec.fingerprint


@pytest.mark.parametrize(("batch_size", "other"), [(4, default_convert), (None, default_collate)])
def test_the_one_that_torch_would_not_choose_is_a_choice(batch_size, other):
    """default_convert leaves a batch's samples apart; default_collate makes a batch of a single sample's parts."""
    asked = request(batch_size=batch_size, collate_fn=other)
    assert asked.parts["collate_fn"] is other
    assert asked.spec.fingerprint != request(batch_size=batch_size).spec.fingerprint


IDENTITY = [
    {"dataset": list(range(1, 21))},
    {"dataset": list(range(21))},
    {"order": "shuffle"},
    {"batch_size": 5},
    {"batch_size": None},
    {"drop_last": True},
    {"collate_fn": list},
    {"worker_init_fn": print},
    {"seed": 4},
    {"rank": 1, "world_size": 2},
    {"world_size": 2},
    {"fingerprint_extra": "version 2 of the files"},
]
SERVICE = [{"num_workers": 5}, {"timeout": 9}, {"stream": "s"}, {"buffer": 8}, {"lookback": 1}]


def test_what_decides_the_batches_decides_the_fingerprint():
    fingerprints = [request(**changes).spec.fingerprint for changes in [{}, *IDENTITY]]
    assert len(set(fingerprints)) == len(fingerprints)


@pytest.mark.parametrize("changes", SERVICE, ids=str)
def test_how_they_are_served_does_not(changes):
    assert request(**changes).spec.fingerprint == request().spec.fingerprint


def test_a_dataset_without_a_length_is_told():
    with pytest.raises(CallerError, match=r"dataset generator has no len\(\)"):
        request(dataset=(each for each in ()))


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"rank": 2, "world_size": 2}, "rank"), ({"lookback": -1}, "lookback"), ({"on_error": "x"}, "on_error")],
    ids=str,
)
def test_values_out_of_range_are_told_by_name(changes, told):
    with pytest.raises(CallerError, match=f"^{told} is .*allowed"):
        request(**changes)


# --- default_collate as the trainer has extended it ---


def test_what_was_added_to_default_collate_goes_along(monkeypatch):
    assert "collate_additions" not in request().parts
    before = request().spec.fingerprint
    monkeypatch.setitem(default_collate_fn_map, Extended, collate_extended)
    found = request()
    assert found.parts["collate_additions"] == {Extended: collate_extended}
    assert found.spec.fingerprint != before
    monkeypatch.setitem(default_collate_fn_map, str, collate_extended)
    assert request().parts["collate_additions"] == {str: collate_extended, Extended: collate_extended}


def test_what_a_package_adds_for_its_own_types_does_not_make_another_stream(monkeypatch):
    """Its import in the worker adds the same; that the trainer happens to have imported it must not cost a ring."""
    before = request().spec.fingerprint
    import tensordict

    monkeypatch.setitem(default_collate_fn_map, tensordict.TensorDict, tensordict.stack)
    assert "collate_additions" not in request().parts
    assert request().spec.fingerprint == before
    monkeypatch.setitem(default_collate_fn_map, tensordict.TensorDict, collate_extended)
    assert request().spec.fingerprint != before


class Extended:
    pass


def collate_extended(batch, *, collate_fn_map=None):
    return len(batch)
