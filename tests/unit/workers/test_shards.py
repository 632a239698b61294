"""Batches of an iterable dataset in any order, from iterators that only go forward."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils.data import IterableDataset, get_worker_info

from prefetchd.plan.shard_plan import ShardPlan
from prefetchd.wire.durations import Durations
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import ITERATING
from prefetchd.workers.program import MOST_COPIED_BYTES, Program, ProgramSpentError
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.shards import KEPT_WALKS, NoSuchBatch, Shards
from prefetchd.workers.state_values import has_full_state
from prefetchd.workers.torch_worker import as_torch_worker
from prefetchd.workers.user_code import UserCodeError
from prefetchd.workers.worker_status_writer import WorkerStatusWriter
from tests.budgets import tries
from tests.scenario.oracle import GAMMA, derive, finalise, seed_all

SHARD = 7


# Of which shard an iterator began, and which sample of which shard was made.
begun: list[int] = []
made_samples: list[tuple[int, int]] = []


class Noted(IterableDataset):
    def __init__(self, lengths, bad=()) -> None:
        self.lengths = lengths
        self.bad = bad

    def __iter__(self):
        return Iterator(self)


class Iterator:
    def __init__(self, dataset) -> None:
        info = get_worker_info()
        self.shard, self.left, self.bad = info.id, list(range(dataset.lengths[info.id])), dataset.bad
        self.begin = torch.rand(())
        begun.append(info.id)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        index = self.left.pop(0)
        made_samples.append((self.shard, index))
        if (self.shard, index) in self.bad:
            raise LookupError(index)
        return self.shard, index, float(self.begin), float(torch.rand(())), np.random.rand(), random.random()


def spec(shards: int, **fields) -> StreamSpec:
    fields = {"batch_size": 3, "seed": 9, "rank": 1, "world_size": 2} | fields
    return StreamSpec("0" * 32, order="iterable", length=-1, logical_shards=shards, **fields)


class Made:
    """Shards of one dataset, asked within as_torch_worker()."""

    def __init__(self, lengths, bad=(), worker_init_fn=None, kind=Noted, **fields) -> None:
        begun.clear()
        made_samples.clear()
        reuses = fields.pop("reuses_dataset", False)
        self.spec = spec(len(lengths), **fields)
        self.program = Program(kind(lengths, bad), worker_init_fn=worker_init_fn, reuses_dataset=reuses)
        self.note = WorkerStatusWriter()
        self.shards = Shards(self.spec, self.program, ShardPlan(self.spec), SampleSeeder(), self.note, Durations())

    def __call__(self, step: int, epoch: int = 0):
        with as_torch_worker(self.spec, self.program, 0, 1):
            try:
                return self.shards.samples((epoch, step))
            except NoSuchBatch as none:
                return f"{none.batches} batches"
            except UserCodeError as error:
                return f"{error.location}: {error.__cause__!r}"


def shard_seed(seed, epoch, place, rank):
    return finalise((derive(seed, SHARD, epoch, place) ^ rank) + GAMMA) >> 1


def test_generators_begin_with_the_documented_seeds():
    made = Made([7, 2])
    second = made(2)
    seed_all(shard_seed(9, 0, 0, 1))
    begin = float(torch.rand(()))
    seed_all(shard_seed(9, 0, 2 + 2, 1))
    assert second == [
        (0, index, begin, float(torch.rand(())), np.random.rand(), random.random()) for index in (3, 4, 5)
    ]


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12),
    st.booleans(),
)
@tries(150)
def test_in_whatever_order_batches_are_asked_for_they_are_the_same(lengths, asked, drop_last):
    bad = ((0, 4), (1, 0))
    found = Made(lengths, bad, drop_last=drop_last)
    ours = [found(step, epoch) for epoch, step in asked]
    assert all(len(walks) <= KEPT_WALKS for walks in found.shards._walks.values())
    alone = []
    for epoch, step in asked:
        alone.append(Made(lengths, bad, drop_last=drop_last)(step, epoch))
    assert ours == alone


def test_forward_each_sample_is_made_once():
    made = Made([10, 10])
    for step in range(8):
        made(step)
    assert made(8) == made(9) == "4 batches"
    assert sorted(made_samples) == [(shard, index) for shard in (0, 1) for index in range(10)]
    assert begun == [0, 1]


def test_what_was_passed_is_made_again_by_another_iterator():
    made = Made([10])
    later, earlier = made(2), made(0)
    assert [sample[1] for sample in later] == [6, 7, 8]
    assert [sample[1] for sample in earlier] == [0, 1, 2]
    assert [sample[1] for sample in made(3)] == [9], "the first iterator stands where it was"
    assert begun == [0, 0]


def test_a_batch_that_raises_is_passed():
    made = Made([10], bad=((0, 4),))
    assert made(1) == "next() of the dataset's iterator, epoch 0, step 1, shard 0: LookupError(4)"
    assert [sample[1] for sample in made(2)] == [5, 6, 7]
    assert Made([10], bad=((0, 4),))(2) == made(2)


def test_a_shard_that_cannot_begin_ends_with_that_error():
    def refuses(worker: int) -> None:
        raise PermissionError(worker)

    made = Made([4, 4], worker_init_fn=refuses)
    assert made(1) == "worker_init_fn(1), epoch 0, step 1, shard 1: PermissionError(1)"
    assert made(3) == "1 batches"


def test_samples_as_they_come():
    made = Made([2], batch_size=0)
    assert [len(made(0)), len(made(1)), made(2)] == [1, 1, "2 batches"]


def test_the_note_says_that_it_iterates():
    made = Made([4])
    made(0)
    assert made.note.read().phase == ITERATING


@pytest.mark.parametrize("shard", [0, 1])
def test_each_shard_is_its_own_worker(shard):
    seen = []

    def init(worker: int) -> None:
        info = get_worker_info()
        seen.append((worker, info.id, info.num_workers, info.seed, info.dataset.lengths))
        assert torch.initial_seed() == info.seed

    made = Made([4, 4], worker_init_fn=init)
    made(shard)
    assert seen == [(shard, shard, 2, shard_seed(9, 0, shard, 1), [4, 4])]


class ResumePoint(Iterator):
    def state_dict(self):
        return list(self.left)

    def load_state_dict(self, left) -> None:
        self.left = list(left)


class Stateful(Noted):
    def __iter__(self):
        return ResumePoint(self)


def test_an_iterator_begins_where_another_one_stood():
    straight = Made([10, 10])
    expected = [straight(step) for step in range(8)]
    made = Made([10, 10], kind=Stateful)
    assert made(2) == expected[2]
    state, place = made.shards.state, made.shards.location
    assert place == (0, 0, 2)
    other = Made([10, 10], kind=Stateful)
    other.shards.use_start((0, 2), (2, state))
    found = other(6)
    assert [sample[:2] for sample in found] == [(0, 9)]
    assert [sample[3:] for sample in found] == [sample[3:] for sample in expected[6]]
    assert made_samples == [(0, index) for index in (6, 7, 8, 9)]
    assert [sample[1] for sample in other(0)] == [0, 1, 2], "what is before it is come to from the beginning"


def test_no_state_where_there_is_none():
    made = Made([10])
    made(0)
    assert made.shards.state is None
    ended = Made([2], kind=Stateful)
    ended(0)
    assert ended.shards.state is None, "its end is found at once"


class Wanting(Noted):
    """Is no Stateful of torchdata's, though it has the methods' names."""

    def state_dict(self, num_samples):
        raise AssertionError("nobody knows what to call it with")

    def load_state_dict(self, state) -> None:
        raise AssertionError("it gave none")


def test_a_state_dict_that_needs_arguments_means_no_state():
    """Found as a TypeError in the place of each batch of MosaicML's and litdata's datasets."""
    made = Made([10, 10], kind=Wanting)
    assert made(0) == Made([10, 10])(0)
    assert made.shards.state is None


class Elsewhere(Stateful):
    """Its state is what nobody may put into a checkpoint."""

    def state_dict(self):
        return {"file": Path("/data")}

    def load_state_dict(self, state) -> None:
        raise AssertionError("it was never carried")


def test_a_state_that_cannot_be_carried_is_none_and_is_told_once():
    made = Made([10, 10], kind=Elsewhere)
    expected = Made([10, 10])
    made(0)
    with pytest.warns(UserWarning, match=r"holds a pathlib\..*state_classes = .*begins with the epoch$") as told:
        assert [made.shards.state for _ in range(3)] == [None] * 3
    assert len(told) == 1
    assert [made(step) for step in (2, 1)] == [expected(step) for step in (2, 1)]


def shuffled_stream(samples: int):
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"at": list(range(samples))}).to_iterable_dataset(num_shards=1)
    return found.shuffle(seed=1, buffer_size=8).with_format("torch")


class Wrapping(IterableDataset):
    """Says where the one that it holds stands."""

    def __init__(self, inner) -> None:
        self.parts = [inner]

    def __iter__(self):
        return iter(self.parts[0])

    def state_dict(self):
        return self.parts[0].state_dict()

    def load_state_dict(self, state) -> None:
        self.parts[0].load_state_dict(state)


@pytest.mark.parametrize("wrap", [lambda it: it, Wrapping], ids=["itself", "in another one"])
def test_a_state_that_leaves_out_a_shuffle_buffer_is_none(wrap):
    """Found as 36 of 240 samples that were never seen, after one worker was killed."""
    made = Made([20], kind=lambda lengths, _: wrap(shuffled_stream(*lengths)))
    made(0)
    assert made.shards.state is None


def test_other_states_are_full():
    datasets = pytest.importorskip("datasets")
    found = datasets.Dataset.from_dict({"at": list(range(20))}).to_iterable_dataset(num_shards=2)
    assert all(map(has_full_state, (found, found.map(dict).skip(1), Stateful([1]))))


class Epochs(Noted):
    """Counts its passes where it begins one."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


class Resting(Noted):
    """Is after a pass what it was before."""

    def __iter__(self):
        self.at = 0
        for sample in Iterator(self):
            self.at += 1
            yield sample
        del self.at


@pytest.mark.parametrize(
    ("kind", "reuses", "change", "passes"),
    [(Epochs, True, "dataset.passes", 2), (Epochs, False, "", 0), (Resting, True, "", None)],
)
def test_reused_dataset_keeps_what_its_passes_change(kind, reuses, change, passes):
    made = Made([4], kind=kind, reuses_dataset=reuses)
    changes = []
    for epoch in (0, 1):
        assert [made(step, epoch) for step in range(3)][-1] == "2 batches"
        changes.append(made.shards.take_change())
    assert changes == [change, ""], "reported once"
    assert getattr(made.program.dataset, "passes", None) == passes


class Locked(Noted):
    def __init__(self, lengths, bad) -> None:
        super().__init__(lengths, bad)
        self.lock = threading.Lock()


class Large(Noted):
    def __init__(self, lengths, bad) -> None:
        super().__init__(lengths, bad)
        self.rows = np.zeros(MOST_COPIED_BYTES, np.uint8)


@pytest.mark.parametrize("kind", [Locked, Large])
def test_what_is_not_copied_in_a_fork_is_walked_once(kind):
    made = Made([7, 7], kind=kind)
    made.program.once = True
    in_turn = [made(0), made(2)]
    assert made.shards._walks[0][0].info.dataset is made.program.dataset
    for step, epoch in ((1, 0), (0, 1), (0, 0)):
        with pytest.raises(ProgramSpentError):
            made(step, epoch)
    # What was refused has done no harm.
    in_turn.append(made(4))
    alone = Made([7, 7])
    assert in_turn == [alone(0), alone(2), alone(4)]


def test_without_workers_what_cannot_be_copied_is_walked_itself():
    made = Made([7], kind=Locked)
    assert made(0) == Made([7])(0)


# --- shards that begin together ---


def begin(made: Made, shard: int, epoch: int = 0, *, anew: bool = False) -> None:
    with as_torch_worker(made.spec, made.program, 0, 1):
        made.shards.begin(epoch, shard, anew=anew)


def test_a_begun_shard_keeps_its_first_batch():
    expected = [Made([7, 7])(step) for step in (1, 3, 5, 7)]
    made = Made([7, 7])
    begin(made, 1)
    begin(made, 1)
    assert made_samples == [(1, 0), (1, 1), (1, 2)], "taken once"
    assert [made(step) for step in (1, 3, 5, 7)] == expected
    assert begun == [1]


@pytest.mark.parametrize(("lengths", "bad"), [([0, 4], ()), ([4, 4], ((0, 1),)), ([2, 4], ())])
def test_a_begun_shard_ends_and_fails_where_it_would(lengths, bad):
    expected = [Made(lengths, bad)(step) for step in (0, 2, 4)]
    made = Made(lengths, bad)
    begin(made, 0)
    assert [made(step) for step in (0, 2, 4)] == expected


def test_a_shard_that_begins_anew_drops_its_iterator():
    expected = Made([9, 9])
    made = Made([9, 9])
    assert made(0) == expected(0)
    begin(made, 0, anew=True)
    assert begun == [0, 0, 0], "one of the other, two of this"
    assert [made(step) for step in (2, 4)] == [expected(step) for step in (2, 4)]


def test_a_shard_begins_at_the_state_that_it_was_sent():
    straight = Made([10, 10], kind=Stateful)
    straight(2)
    state = straight.shards.state
    expected = [straight(step) for step in (4, 6)]
    made = Made([10, 10], kind=Stateful)
    made.shards.use_start((0, 4), (2, state))
    begin(made, 0)
    assert made_samples == [(0, 6), (0, 7), (0, 8)]
    assert [made(step) for step in (4, 6)] == expected
