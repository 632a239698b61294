"""States of a checkpoint that somebody else has made: none runs anything, and what cannot be is an error at once."""

from __future__ import annotations

import base64
import collections
import json
import math
import os
import pickle
import random

import numpy as np
import pytest
import torch
from prefetchd_client import BatchDirectory, PrefetchLoader
from prefetchd_client.session.state_numbers import EPOCH_LIMIT, STEP_LIMIT
from torch.utils.data import IterableDataset

from prefetchd.wire.errors import CallerError
from prefetchd.wire.plain_state import decode_node, encode_node
from prefetchd.workers.state_values import decode_state, encode_state
from tests.scenario.datasets import Numbers, equal


class Counting(IterableDataset):
    """Gives numbers, and has a state."""

    def __init__(self, length=40):
        self.length = length
        self.at = 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "kept": (1, {2, 3}), "random": torch.get_rng_state()[:16]}

    def load_state_dict(self, state):
        assert state["kept"] == (1, {2, 3})
        self.at = state["at"]


class Plain(IterableDataset):
    """Gives numbers, and has none."""

    def __iter__(self):
        yield from range(40)


class Rich:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Rich and other.value == self.value

    __hash__ = None


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (os.fspath(self.path),)


def text_of(content):
    return base64.b64encode(content).decode("ascii")


@pytest.mark.parametrize("dataset", [Counting, Plain])
@pytest.mark.parametrize("version", [1, 2])
def test_a_pickle_in_a_state_is_never_loaded(daemon, tmp_path, dataset, version):
    made = tmp_path / "made"
    with PrefetchLoader(dataset(), batch_size=4, num_workers=1) as loader:
        state = {**loader.state_dict(), "version": version, "step": 2}
        state["shards"] = [[0, 2, text_of(pickle.dumps((Runs(made), None)))]]
        state = json.loads(json.dumps(state))
        if version == 2:
            with pytest.raises(CallerError, match="damaged"):
                loader.load_state_dict(state)
        else:
            with pytest.warns(UserWarning, match="gone through instead"):
                loader.load_state_dict(state)
            assert next(iter(loader)).tolist() == [8, 9, 10, 11]
    assert not made.exists()


def test_a_state_of_plain_values_goes_on_where_it_was(daemon):
    with PrefetchLoader(Counting(), batch_size=4, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
    assert state["shards"]
    with PrefetchLoader(Counting(), batch_size=4, num_workers=1) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).tolist() == [12, 13, 14, 15]


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


WRONG = [
    -1,
    1 << 40,
    1 << 60,
    1 << 63,
    1 << 64,
    1 << 2000,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    "3",
    None,
    True,
    [1],
    {"a": 1},
    b"1",
    nested(900),
    torch.ones(2),
]


@pytest.fixture(scope="module")
def loader(shared_daemon):
    with PrefetchLoader(Numbers(16), batch_size=4) as found:
        yield found


@pytest.mark.parametrize("key", ["version", "epoch", "step"])
@pytest.mark.parametrize("value", WRONG, ids=lambda value: f"{type(value).__name__}-{str(value)[:12]}")
def test_a_number_that_cannot_be_is_an_error_at_once_and_changes_nothing(loader, key, value):
    before = loader.state_dict()
    with pytest.raises(CallerError, match=r"allowed|reads 1 and 2") as raised:
        loader.load_state_dict({**before, key: value})
    assert len(str(raised.value)) < 1000
    assert loader.state_dict() == before
    assert len(list(loader)) == 4


@pytest.mark.parametrize("value", WRONG, ids=lambda value: f"{type(value).__name__}-{str(value)[:12]}")
def test_an_epoch_that_cannot_be_is_an_error(loader, tmp_path, value):
    with pytest.raises(CallerError, match="allowed"):
        loader.set_epoch(value)
    directory = BatchDirectory(tmp_path)
    for call in (
        lambda: directory.set_epoch(value),
        lambda: directory.load_state_dict({"epoch": value, "step": 0}),
        lambda: directory.load_state_dict({"epoch": 0, "step": value}),
        lambda: BatchDirectory(tmp_path, epoch=value),
        lambda: BatchDirectory(tmp_path, step=value),
    ):
        with pytest.raises(CallerError, match="allowed"):
            call()


@pytest.mark.parametrize("state", [None, 3, [], {}, "epoch", {"epoch": 1}, nested(900)])
def test_what_is_no_state_is_an_error(loader, tmp_path, state):
    with pytest.raises(CallerError):
        loader.load_state_dict(state)
    with pytest.raises(CallerError):
        BatchDirectory(tmp_path).load_state_dict(state)


@pytest.mark.parametrize("key", ["seed", "order", "samples", "batch_size", "rank", "world_size"])
@pytest.mark.parametrize("value", [-1, 0, 3, math.nan, None, nested(900), torch.ones(2), "\x1b[2J"])
def test_an_identity_that_is_another_one_is_a_warning_at_most(loader, key, value, recwarn):
    loader.load_state_dict({**loader.state_dict(), "step": 2, key: value})
    assert all("\x1b" not in str(each.message) for each in recwarn)
    loader.load_state_dict({**loader.state_dict(), "step": 0})


def test_a_step_that_other_ranks_make_too_large_is_an_error(loader):
    with pytest.raises(CallerError, match="world_size"):
        loader.load_state_dict({**loader.state_dict(), "step": STEP_LIMIT, "world_size": 1 << 40})


@pytest.mark.parametrize(("epoch", "step"), [(EPOCH_LIMIT, 0), (0, STEP_LIMIT), (EPOCH_LIMIT, STEP_LIMIT)])
def test_the_largest_numbers_do_no_harm(daemon, epoch, step):
    with PrefetchLoader(Numbers(16), batch_size=4, shuffle=True) as loader:
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "step": step})
        assert len(list(loader)) == 4
        loader.set_epoch(1)
        assert len(list(loader)) == 4


@pytest.mark.parametrize(
    "shards",
    [
        3,
        [3],
        [[0, 1]],
        [[0, 1, 2]],
        [[0, 1, "no base64!"]],
        [[-1, 1, ""]],
        [["0", 1, ""]],
        [[0, 1 << 64, ""]],
        [[0, math.nan, ""]],
        [[0, 1, text_of(b"\xc1")]],
        [[0, 1, text_of(encode_node(["c", "os", "system"]))]],
        [[0, 1, text_of(b"\x91" * 4000)]],
        [[each, 1, ""] for each in range(70_000)],
    ],
    ids=lambda shards: str(shards)[:30],
)
def test_shards_that_are_none_are_an_error(daemon, shards):
    with PrefetchLoader(Counting(), batch_size=4, num_workers=1) as loader:
        before = loader.state_dict()
        with pytest.raises(CallerError):
            loader.load_state_dict({**before, "shards": shards})
        assert loader.state_dict() == before


@pytest.mark.parametrize("generators", [3, "abc", [3], [None], ["no base64!"], [""], [text_of(b"x" * 10)] * 9])
def test_generators_that_are_none_are_an_error(shared_daemon, generators):
    sampler = torch.utils.data.RandomSampler(Numbers(16), generator=torch.Generator())
    with PrefetchLoader(Numbers(16), batch_size=4, sampler=sampler) as loader:
        before = loader.state_dict()
        with pytest.raises(CallerError):
            loader.load_state_dict({**before, "generators": generators})
        assert loader.state_dict() == before


# --- a dataset's own state ---


PLAIN = [
    None,
    True,
    -(1 << 63),
    1 << 100,
    -(1 << 100),
    1.5,
    math.inf,
    "text",
    b"bytes",
    [1, [2, (3,)]],
    {"a": {1: (2,)}, (1, 2): "b"},
    {1, 2},
    frozenset({3}),
    collections.OrderedDict(a=1),
    collections.deque([1, 2], 3),
    random.Random(5).getstate(),
    torch.arange(6).view(2, 3),
    torch.ones(2, dtype=torch.bfloat16),
    torch.empty(0, 3),
    np.arange(4.0).reshape(2, 2),
    np.float32(1.5),
    np.random.default_rng(3).bit_generator.state,
    np.array(["a", "bc"]),
    np.array(["2020-01-01"], "M8[D]"),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: str(value)[:20])
def test_plain_values_come_back(value):
    found = decode_state(encode_state(value, None), None)
    assert type(found) is type(value)
    assert equal(found, value)


def test_richer_states_are_allowed_by_the_dataset():
    class Allows:
        state_classes = (Rich,)

    data = encode_state({"rich": Rich([1, 2])}, Allows())
    assert decode_state(data, Allows()) == {"rich": Rich([1, 2])}
    with pytest.raises(CallerError, match=r"Rich; allowed: numbers.*state_classes = \(ThatClass,\)"):
        decode_state(data, object())
    with pytest.raises(CallerError, match="state_classes"):
        encode_state(Rich(1), object())


def test_what_runs_when_it_is_pickled_is_never_written(tmp_path):
    with pytest.raises(CallerError, match="Runs"):
        encode_state({"a": Runs(tmp_path / "made")}, object())
    with pytest.raises(CallerError, match="function"):
        encode_state(len, object())


@pytest.mark.parametrize(
    "node",
    [
        ["x", 1],
        [],
        ["l"],
        ["l", 3],
        ["d", [[1]]],
        ["q", -1, []],
        ["q", "a", []],
        ["i", "1e9"],
        ["i", "9" * 100_000],
        ["T", "float32", [-1], b""],
        ["T", "float32", [2], "text"],
        ["A", 3, [1], b""],
        ["G", "<f4", None],
        ["c", 3, "a", None],
        [["l"], 3],
        {"a": 1},
    ],
    ids=lambda node: str(node)[:20],
)
def test_nodes_that_are_none_are_an_error(node):
    with pytest.raises(CallerError):
        decode_node(encode_node(node))


@pytest.mark.parametrize(
    "node",
    [
        ["T", "load", [1], b"1234"],
        ["T", "float32", [1 << 40], b"1234"],
        ["T", "float32", [1], b"123"],
        ["A", "O", [1], b"12345678"],
        ["A", "V1000000", [1], b"1"],
        ["A", "nonsense", [1], b"1"],
        ["G", "<f4", b""],
        ["c", "os", "system", None],
    ],
    ids=str,
)
def test_values_that_cannot_be_are_an_error(node):
    with pytest.raises(CallerError):
        decode_state(encode_node(node), object())


def test_a_state_that_holds_itself_is_an_error():
    state = []
    state.append(state)
    with pytest.raises(CallerError, match="holds itself"):
        encode_state(state, object())
