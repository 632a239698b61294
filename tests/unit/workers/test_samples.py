"""Samples one after another: what is noted of each, and what becomes of those that raise."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from prefetchd_client.batches.tensors import BatchReader

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.plan.seeds import SUBSTITUTES
from prefetchd.wire.errors import WorkerDiedError
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import COLLATING, LOADING, WRITING, WorkerStatus
from prefetchd.workers.fill import Filler
from prefetchd.workers.program import Program
from prefetchd.workers.row_leaves import Deviation
from prefetchd.workers.samples import ALL_AT_ONCE, TEXT_LIMIT_CHARACTERS
from prefetchd.workers.user_code import UserCodeError
from prefetchd.workers.worker_status_writer import WorkerStatusWriter
from tests.scenario.oracle import SAMPLE, derive

LENGTH = 20
AT_ONCE = (ALL_AT_ONCE, 0)


class Noted:
    """Item i is (i, the seed that torch has); those in `bad` raise. `notes` are those of each call."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.writer = WorkerStatusWriter()
        self.notes: list[WorkerStatus] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        self.notes.append(self.writer.read())
        if index in self.bad:
            raise ValueError(f"no {index}")
        return index, torch.initial_seed()

    @property
    def asked(self) -> list[int]:
        return [note.index for note in self.notes]


class NotedLists(Noted):
    def __init__(self, *bad: int, make=list) -> None:
        super().__init__(*bad)
        self.make = make
        self.lists: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> Any:
        self.lists.append(indices)
        self.notes.append(self.writer.read())
        if set(indices) & set(self.bad):
            raise ValueError("one of them")
        return self.make([(index, torch.initial_seed()) for index in indices])


def filler(dataset: Noted, on_error: str = "raise", collate_fn: Any = None, **options: Any) -> Filler:
    fields = {"seed": 5, "order": "sequential", "length": LENGTH, "batch_size": 4, "on_error": on_error} | options
    return Filler(StreamSpec("0" * 32, **fields), Program(dataset, collate_fn), note=dataset.writer)


def whole(made: Filler, step: int, **options: Any) -> Any:
    target = (ctypes.c_ubyte * (1 << 16))()
    made.fill_whole((0, step), 4, 1 << 16, lambda: target, **options)
    return BatchReader().read(target)


def seeds(*ordinals: int) -> list[int]:
    return [derive(5, SAMPLE, 0, ordinal) >> 1 for ordinal in ordinals]


def what(note: WorkerStatus) -> tuple[int, ...]:
    return note.phase, note.row, note.attempt, note.index


# --- notes ---


def test_each_sample_is_noted_before_it_is_asked_for():
    dataset = Noted()
    whole(filler(dataset), 1)
    assert [what(note) for note in dataset.notes] == [(LOADING, row, 0, 4 + row) for row in range(4)]
    times = [note.since_ns for note in dataset.notes]
    assert times == sorted(times)


def test_rows_are_noted_by_their_number_in_the_batch():
    dataset = Noted()
    made = filler(dataset)
    measured = made.measure((0, 0), 4)
    made.use_layout(measured.layout)
    del dataset.notes[:]
    made.fill_rows((0, 1), 2, 4, (ctypes.c_ubyte * measured.payload_bytes)())
    assert [what(note) for note in dataset.notes] == [(LOADING, 2, 0, 6), (LOADING, 3, 0, 7)]


def test_what_is_about_the_whole_batch_is_noted_without_a_row():
    dataset, seen = NotedLists(), []

    def collate(samples: Any) -> Any:
        seen.append(what(dataset.writer.read()))
        return Pickled(dataset.writer, seen)

    whole(filler(dataset, collate_fn=collate), 1)
    assert what(dataset.notes[0]) == (LOADING, -1, 0, -1)
    assert seen[0] == (COLLATING, -1, 0, -1)
    assert set(seen[1:]) == {(WRITING, -1, 0, -1)}


class Pickled:
    def __init__(self, writer: WorkerStatusWriter, seen: list) -> None:
        self.writer = writer
        self.seen = seen

    def __reduce__(self) -> Any:
        self.seen.append(what(self.writer.read()))
        return list, ()


def test_substitutes_are_noted_by_their_attempt():
    spec = filler(Noted(), "substitute").plan
    first = spec.substitute(0, 5, 1)
    dataset = Noted(5, first)
    whole(filler(dataset, "substitute"), 1)
    noted = [what(note) for note in dataset.notes if note.row == 1]
    assert noted == [(LOADING, 1, 0, 5), (LOADING, 1, 1, first), (LOADING, 1, 2, spec.substitute(0, 5, 2))]
    assert [note.attempt for note in dataset.notes if note.row > 1] == [0, 0]


# --- bad ones ---


def test_one_that_raises_fails_the_batch():
    made = filler(Noted(6))
    with pytest.raises(UserCodeError, match=r"^dataset\[6\], epoch 0, step 1$") as caught:
        whole(made, 1)
    assert str(caught.value.__cause__) == "no 6"
    assert made.take_bad() == []


def test_one_that_is_left_out_is_missing_and_told():
    made = filler(Noted(4, 6), "skip")
    batch = whole(made, 1)
    assert batch[0].tolist() == [5, 7]
    assert batch[1].tolist() == seeds(5, 7)
    bad = made.take_bad()
    assert [(each.row, each.attempt, each.index) for each in bad] == [(0, 0, 4), (2, 0, 6)]
    assert bad[1].text == "dataset[6] (epoch 0, step 1, row 2) is left out: ValueError: no 6"
    assert made.take_bad() == [], "once"


def test_a_substitute_has_the_seed_of_the_sample_whose_place_it_takes():
    dataset = Noted(6)
    made = filler(dataset, "substitute")
    batch = whole(made, 1)
    other = made.plan.substitute(0, 6, 1)
    assert batch[0].tolist() == [4, 5, other, 7]
    assert batch[1].tolist() == seeds(4, 5, 6, 7)
    (bad,) = made.take_bad()
    assert (bad.row, bad.attempt, bad.index) == (2, 0, 6)
    assert f"gives way to dataset[{other}]: ValueError: no 6" in bad.text


def test_when_no_substitute_will_do_the_first_error_is_told():
    made = filler(Noted(*range(LENGTH)), "substitute")
    with pytest.raises(UserCodeError, match=f"so did the {SUBSTITUTES} samples") as caught:
        whole(made, 1)
    assert str(caught.value.__cause__) == "no 4"
    assert len(made.take_bad()) == 1 + SUBSTITUTES


def test_a_batch_of_which_nothing_is_left_fails_with_its_first_error():
    with pytest.raises(UserCodeError, match=r"^dataset\[4\], epoch 0, step 1$") as caught:
        whole(filler(Noted(4, 5, 6, 7), "skip"), 1)
    assert str(caught.value.__cause__) == "no 4"


def test_a_row_that_is_left_out_deviates():
    made = filler(Noted(6), "skip")
    measured = made.measure((0, 0), 4)
    made.use_layout(measured.layout)
    target = (ctypes.c_ubyte * measured.payload_bytes)()
    with pytest.raises(Deviation, match=r"dataset\[6\], epoch 0, step 1 is left out"):
        made.fill_rows((0, 1), 0, 4, target)
    made.fill_rows((0, 1), 0, 2, target)


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_first_sample_that_is_bad_does_not_keep_a_stream_from_rows(on_error):
    dataset = Noted(0, 1)
    made = filler(dataset, on_error)
    measured = made.measure((0, 0), 4)
    assert measured.layout
    assert measured.payload_bytes == filler(Noted()).measure((0, 0), 4).payload_bytes
    assert whole(made, 0)[0].tolist()[-2:] == [2, 3]


def test_texts_are_one_short_line():
    class Long(Noted):
        def __getitem__(self, index: int) -> Any:
            raise ValueError("many\nlines " * 1000)

    made = filler(Long(), "skip")
    with pytest.raises(UserCodeError):
        whole(made, 0)
    for bad in made.take_bad():
        assert "\n" not in bad.text
        assert len(bad.text) <= TEXT_LIMIT_CHARACTERS


# --- deadly ones ---


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_sample_that_ends_its_workers_is_not_asked_for(on_error):
    dataset = Noted()
    made = filler(dataset, on_error)
    batch = whole(made, 1, deadly=frozenset({(2, 0)}))
    assert 6 not in dataset.asked
    other = made.plan.substitute(0, 6, 1)
    assert batch[0].tolist() == ([4, 5, 7] if on_error == "skip" else [4, 5, other, 7])
    (bad,) = made.take_bad()
    assert "WorkerDiedError: the workers that asked for dataset[6] died" in bad.text


def test_a_deadly_substitute_is_passed_over():
    made = filler(Noted(), "substitute")
    batch = whole(made, 1, deadly=frozenset({(2, 0), (2, 1)}))
    assert batch[0].tolist()[2] == made.plan.substitute(0, 6, 2)


def test_when_all_of_a_batch_are_deadly_that_is_the_error():
    with pytest.raises(UserCodeError) as caught:
        whole(filler(Noted(), "skip"), 1, deadly=frozenset({(row, 0) for row in range(4)}))
    assert isinstance(caught.value.__cause__, WorkerDiedError)


# --- __getitems__ ---


def test_what_getitems_gives_is_left_as_it_is():
    made = filler(NotedLists(make=dict), "skip", collate_fn=lambda samples: (type(samples).__name__, len(samples)))
    assert made.batch((0, 1)) == ("dict", 4)


def test_a_list_that_raises_fails_the_batch():
    with pytest.raises(UserCodeError, match=r"^dataset\.__getitems__, epoch 0, step 1$"):
        whole(filler(NotedLists(6)), 1)


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_list_that_raises_is_asked_for_one_by_one(on_error):
    dataset = NotedLists(6)
    made = filler(dataset, on_error)
    batch = whole(made, 1)
    other = made.plan.substitute(0, 6, 1)
    instead = [] if on_error == "skip" else [other]
    assert batch[0].tolist() == [4, 5, *instead, 7]
    assert batch[1].tolist() == seeds(4, 5, *[6] * len(instead), 7)
    assert dataset.lists == [[4, 5, 6, 7], [4], [5], [6], *[[each] for each in instead], [7]]


def test_a_list_that_ends_its_workers_is_not_asked_for():
    dataset = NotedLists()
    batch = whole(filler(dataset, "skip"), 1, deadly=frozenset({AT_ONCE}))
    assert batch[0].tolist() == [4, 5, 6, 7]
    assert dataset.lists == [[4], [5], [6], [7]]


def test_the_plan_s_substitutes_are_samples_of_the_dataset():
    plan = BatchPlan(StreamSpec("0" * 32, seed=1, order="shuffle", length=7, batch_size=2))
    found = {plan.substitute(0, ordinal, attempt) for ordinal in range(50) for attempt in range(1, SUBSTITUTES + 1)}
    assert found == set(range(7))
