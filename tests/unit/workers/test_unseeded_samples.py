"""Samples that are made without having been seeded: should one draw after all, its batch is as if all had been."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from prefetchd_client.batches.tensors import BatchReader

from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers import samples, state_readers
from prefetchd.workers.fill import Filler
from prefetchd.workers.program import Program
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.user_code import UserCodeError
from prefetchd.workers.worker_status_writer import WorkerStatusWriter
from tests.budgets import tries
from tests.unit.workers.comparing import differences
from tests.unit.workers.conftest import TRIAL

pytestmark = pytest.mark.usefixtures("as_in_a_worker")

LENGTH, BATCH = 48, 8

DRAWS = {
    "nothing": lambda: 0.0,
    "torch": lambda: torch.rand(1).item(),
    "numpy": lambda: np.random.rand(),
    "random": lambda: random.random(),
    "reads": lambda: float(torch.initial_seed() % 1000),
}


class Drawing:
    """Item i draws as `deeds` says of i, and then raises where `bad` has i. `asked` are all items that it was asked
    for, and `seen` what the status said then."""

    def __init__(self, deeds: dict[int, str], bad: frozenset[int] = frozenset()) -> None:
        self.deeds = deeds
        self.bad = bad
        self.writer = WorkerStatusWriter()
        self.asked: list[int] = []
        self.seen: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        status = self.writer.read()
        self.asked.append(index)
        self.seen.append((status.row, status.index))
        drawn = DRAWS[self.deeds.get(index, "nothing")]()
        if index in self.bad:
            raise ValueError(f"{index} drew {drawn}")
        return torch.tensor([index, index]), drawn


def filler(dataset: Drawing, *, lazy: bool, **options: Any) -> Filler:
    fields = {"seed": 5, "order": "sequential", "length": LENGTH, "batch_size": BATCH} | options
    spec = StreamSpec("0" * 32, **fields)
    return Filler(spec, Program(dataset), SampleSeeder(lazy=lazy), dataset.writer)


def by_rows(made: Filler, step: int, cuts: list[int]) -> Any:
    """The batch, filled in pieces that end where `cuts` says."""
    measured = made.measure((0, 0), BATCH)
    made.use_layout(measured.layout)
    target = (ctypes.c_ubyte * measured.payload_bytes)()
    ends = sorted({*cuts, BATCH})
    for first, end in zip([0, *ends], ends):
        if first < end:
            made.fill_rows((0, step), first, end, target)
    return BatchReader().read(target)


def whole(made: Filler, step: int) -> Any:
    target = (ctypes.c_ubyte * (1 << 16))()
    made.fill_whole((0, step), BATCH, 1 << 16, lambda: target)
    return BatchReader().read(target)


deeds = st.dictionaries(st.integers(TRIAL, LENGTH - 1), st.sampled_from(list(DRAWS)), max_size=6)


@given(deeds, st.lists(st.integers(0, BATCH), max_size=2), st.sampled_from([0, 10**9]))
@tries(100)
def test_batches_by_rows(plan, cuts, every_ns):
    state_readers._hooks.is_generator_taken = False
    with pytest.MonkeyPatch.context() as patch:
        # At once, or at the end of a task alone.
        patch.setattr(samples, "CHECK_EVERY_NS", every_ns)
        made, each = filler(Drawing(plan), lazy=True), filler(Drawing(plan), lazy=False)
        for step in range(LENGTH // BATCH):
            assert differences(by_rows(made, step, cuts), by_rows(each, step, [])) == []


@given(deeds, st.sets(st.integers(TRIAL, LENGTH - 1), max_size=4), st.sampled_from(["skip", "substitute"]))
@tries(100)
def test_whole_batches_with_bad_samples(plan, bad, on_error):
    state_readers._hooks.is_generator_taken = False
    made, each = (filler(Drawing(plan, frozenset(bad)), lazy=lazy, on_error=on_error) for lazy in (True, False))
    for step in range(LENGTH // BATCH):
        assert differences(whole(made, step), whole(each, step)) == []
        assert made.take_bad() == each.take_bad(), "each is told once"


def test_what_draws_nothing_is_asked_for_once_and_the_status_says_which_it_is():
    dataset = Drawing({})
    made = filler(dataset, lazy=True)
    for step in range(3):
        by_rows(made, step, [3])
    assert dataset.asked == [*range(8), 0, *range(8, 16), 0, *range(16, 24)]
    assert dataset.seen[-8:] == [(row, 16 + row) for row in range(8)]


def test_those_since_the_last_question_are_made_again_and_no_others(monkeypatch):
    monkeypatch.setattr(samples, "CHECK_EVERY_NS", 10**9)
    dataset = Drawing({21: "random"})
    made = filler(dataset, lazy=True)
    for step in range(2):
        by_rows(made, step, [])
    del dataset.asked[:]
    by_rows(made, 2, [4])
    assert dataset.asked == [0, *range(16, 20), *range(20, 24), *range(20, 24)]


def test_a_bad_sample_that_is_made_again_is_told_once(monkeypatch):
    monkeypatch.setattr(samples, "CHECK_EVERY_NS", 10**9)
    made = filler(Drawing({21: "random"}, frozenset({18})), lazy=True, on_error="skip")
    for step in range(3):
        whole(made, step)
    assert [bad.row for bad in made.take_bad()] == [2]


def test_an_error_that_comes_of_what_was_drawn_is_that_of_the_sample_s_own_seed():
    found = []
    for lazy in (True, False):
        made = filler(Drawing({21: "random"}, frozenset({21})), lazy=lazy)
        for step in range(2):
            whole(made, step)
        with pytest.raises(UserCodeError) as caught:
            whole(made, 2)
        found.append(str(caught.value.__cause__))
    assert found[0] == found[1]


def test_the_durations_of_all_are_counted():
    made = filler(Drawing({}), lazy=True)
    for step in range(3):
        whole(made, step)
    total_us, *pairs = made.times.take()
    assert sum(pairs[1::2]) == 3 * BATCH
    assert total_us > 0
