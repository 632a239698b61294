"""Iterable datasets: shards by turns, the same batches whatever dies, resumed anywhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal

import psutil
import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from prefetchd.wire.errors import CallerError, WorkerDiedError
from tests.scenario import iterables
from tests.scenario.datasets import equal
from tests.scenario.waiting import ring_when, stream_when, until

BATCH = 4


def loader(dataset, workers: int = 3, **options) -> PrefetchLoader:
    return PrefetchLoader(dataset, options.pop("batch_size", BATCH), num_workers=workers, seed=5, **options)


def epochs(dataset, count: int, workers: int = 3, **options) -> list[list]:
    with loader(dataset, workers, **options) as found:
        return [list(found) for _ in range(count)]


@pytest.fixture(scope="module")
def expected() -> list[list]:
    """Three epochs of Draws, made without a daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFETCHD_INLINE", "1")
        return epochs(iterables.Draws(), 3)


def test_shards_take_turns_and_the_longer_ones_go_on(shared_daemon, expected):
    indices = [[batch[0].tolist() for batch in epoch] for epoch in expected]
    shards = [list(range(shard, 90 - 10 * shard, 3)) for shard in range(3)]
    batches = [[samples[at : at + BATCH] for at in range(0, len(samples), BATCH)] for samples in shards]
    by_turns = [batch for turn in itertools.zip_longest(*batches) for batch in turn if batch is not None]
    assert indices == [by_turns] * 3
    assert equal(epochs(iterables.Draws(), 3), expected)
    assert not equal(expected[0], expected[1]), "what it draws is another in each epoch"


@pytest.mark.parametrize("most", ["1", "2"])
def test_fewer_workers_than_shards(daemon, expected, most):
    daemon.start("--workers", most)
    assert equal(epochs(iterables.Draws(), 3), expected)


def workers_of(daemon) -> list[psutil.Process]:
    return [each for each in daemon.processes() if each.name().startswith("prefetchd-w")]


def test_each_sample_is_made_once_and_a_shard_by_one_worker(daemon, tmp_path):
    daemon.start("--workers", "3")
    with loader(iterables.Draws(notes=tmp_path), buffer=8) as found:
        batches = list(found)
    assert len(batches) == 21
    for shard in range(3):
        first_pass = (tmp_path / str(shard)).read_text().splitlines()[: len(range(shard, 90 - 10 * shard, 3))]
        assert [int(line.split()[0]) for line in first_pass] == list(range(shard, 90 - 10 * shard, 3))
        assert len({line.split()[1] for line in first_pass}) == 1


def meeting_indices(workers: int) -> list[list[int]]:
    theirs = DataLoader(iterables.Meeting(workers), BATCH, num_workers=workers)
    return [batch[0].tolist() for batch in theirs]


@pytest.mark.parametrize(("workers", "busy"), [(2, "3"), (3, "1")])
def test_shards_that_meet_at_a_barrier_begin_together(daemon, workers, busy):
    """Found as MosaicML's StreamingDataset, whose first batch never came with two workers."""
    daemon.start("--workers", busy)
    found = epochs(iterables.Meeting(workers), 3, workers, buffer=4)
    indices = [[batch[0].tolist() for batch in epoch] for epoch in found]
    assert indices == [meeting_indices(workers)] * 3


@pytest.mark.slow
def test_shards_that_met_meet_again_after_a_worker_has_died(daemon):
    daemon.start()
    dataset = iterables.Meeting(2, 400)
    expected, *_ = epochs(dataset, 1, 2)
    found = []
    with loader(dataset, 2, buffer=4, fresh=True) as ours:
        for number, batch in enumerate(ours):
            found.append(batch)
            if number == 50:
                until(lambda: workers_of(daemon), "it has workers")[0].kill()
    assert equal(found, expected)


def test_many_short_epochs_ahead_are_made_once(shared_daemon, tmp_path):
    """Found as each epoch being iterated over twice: where those ahead end was forgotten."""
    ring = 100

    def full_after(batches: int) -> None:
        def is_so(stream) -> bool:
            held = stream["ring"] or {"ready": 0, "leased": 0}
            return stream["consumed_batches"] == batches and held["ready"] + held["leased"] == ring

        stream_when(shared_daemon, "short", is_so, "its ring is full")

    with loader(iterables.Draws(notes=tmp_path), 1, batch_size=90, buffer=ring, stream="short") as found:
        for epoch in range(1, 11):
            assert len(list(found)) == 1
            full_after(epoch)
    assert len((tmp_path / "0").read_text().splitlines()) <= 90 * (10 + ring)


def test_killed_workers_are_followed_by_others_that_come_to_the_same_samples(daemon, expected):
    daemon.start("--workers", "3")
    found = []
    with loader(iterables.Draws(), buffer=6, stream="killed") as ours:
        for epoch in range(2):
            for number, batch in enumerate(ours):
                found.append(batch)
                if number in (2, 9):
                    workers = until(lambda: workers_of(daemon), "it has workers")
                    with contextlib.suppress(psutil.NoSuchProcess):
                        workers[(number + epoch) % len(workers)].kill()
    assert equal(found, [*expected[0], *expected[1]])
    assert stream_when(daemon, "killed", lambda each: each["worker_deaths"] >= 1)


def test_a_killed_daemon_is_followed_by_one_that_goes_on(daemon, expected):
    daemon.start("--workers", "2")
    found = []
    with loader(iterables.Draws(), buffer=6) as ours:
        for number, batch in enumerate(ours):
            found.append(batch)
            if number == 7:
                os.kill(daemon.pid, signal.SIGKILL)
                daemon.start("--workers", "3")
    assert equal(found, expected[0])


@pytest.mark.parametrize("taken", [1, 8, 19, 20, 21])
def test_another_loader_goes_on_where_the_first_one_was(shared_daemon, expected, taken):
    with loader(iterables.Draws()) as first:
        iterator = iter(first)
        for _ in range(taken):
            next(iterator)
        state = first.state_dict()
    with loader(iterables.Draws()) as second:
        second.load_state_dict(state)
        rest = expected[0][taken:]
        assert equal(list(second), rest or expected[1])
        assert equal(list(second), expected[1 if rest else 2])


def test_two_trainers_on_one_stream(shared_daemon, expected):
    arguments = {"stream": "two", "buffer": 12}
    with loader(iterables.Draws(), **arguments) as one, loader(iterables.Draws(), **arguments) as other:
        pairs = list(zip(one, other, strict=True))
    assert equal([pair[0] for pair in pairs], expected[0])
    assert equal([pair[1] for pair in pairs], expected[0])


def test_what_an_epoch_does_to_its_dataset_does_not_reach_the_next(shared_daemon):
    """Nor does the array that it shuffles in place, which all workers share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFETCHD_INLINE", "1")
        inline = epochs(iterables.Shuffling(), 3, workers=2)
    ours = epochs(iterables.Shuffling(), 3, workers=2)
    assert equal(ours, inline)
    assert len({str(epoch) for epoch in ours}) == 3
    with loader(iterables.Shuffling(), workers=2) as later:
        later.set_epoch(2)
        assert equal(list(later), ours[2])


def test_an_attribute_that_is_set_between_epochs_is_seen(shared_daemon):
    dataset = iterables.Scaled(1)
    with loader(dataset, workers=0) as ours:
        for scale in (1, 10, 100):
            dataset.scale = scale
            assert torch.cat(list(ours)).tolist() == list(range(0, 6 * scale, scale))


def test_a_timeout_is_the_trainers_and_kills_nobody(daemon, tmp_path):
    daemon.start()
    with loader(iterables.Halting(tmp_path / "go"), workers=0, timeout=0.5, stream="halting") as ours:
        iterator = iter(ours)
        stream_when(daemon, "halting", lambda each: (each["ring"] or {}).get("ready"), "the first batch is ready")
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
            next(iterator)
        (worker,) = stream_when(daemon, "halting", lambda each: each["workers"][0]["phase"] == "iterating")["workers"]
        (tmp_path / "go").touch()
        ring_when(daemon, "halting", lambda ring: ring["ready"], "it goes on")
        assert next(iterator).tolist() == [4, 5, 6, 7]
        assert stream_when(daemon, "halting")["workers"][0]["pid"] == worker["pid"]
        assert stream_when(daemon, "halting")["worker_deaths"] == 0


def test_an_iterator_that_ends_its_workers_is_named(daemon):
    daemon.start()
    with loader(iterables.Deadly(), workers=0) as ours:
        iterator = iter(ours)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        with pytest.raises(WorkerDiedError, match=r"dataset\.__iter__, epoch 0, step 1: ends its worker each time"):
            next(iterator)


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_samples_of_an_iterator_cannot_be_left_out(shared_daemon, on_error):
    with pytest.raises(CallerError, match=r"on_error='\w+'; allowed for an IterableDataset: 'raise'"):
        loader(iterables.Draws(), on_error=on_error)


class OfThisModule(IterableDataset):
    """Many shards, most of them empty, of batches that outgrow their slots."""

    def __iter__(self):
        info = get_worker_info()
        if info.id % 5 == 3:
            for number in range(6):
                yield torch.full((10 ** (number % 5), 3), info.id)


def test_many_shards_few_of_them_with_samples_of_any_size(shared_daemon):
    found = epochs(OfThisModule(), 2, workers=16, batch_size=None, buffer="8MiB")
    shapes = [(shard, 10 ** (number % 5)) for number in range(6) for shard in (3, 8, 13)]
    assert [[(int(batch[0, 0]), len(batch)) for batch in epoch] for epoch in found] == [shapes] * 2


def test_a_living_iterator_outlasts_what_another_one_begins(shared_daemon):
    """Several epochs under way at once, more than a worker keeps iterators for."""
    with loader(iterables.Draws(30), workers=2, buffer=24) as ours:
        iterators = [iter(ours) for _ in range(5)]
        mixed = [[next(iterator) for iterator in iterators] for _ in range(4)]
    alone = epochs(iterables.Draws(30), 5, workers=2)
    assert equal([list(column) for column in zip(*mixed)], [epoch[:4] for epoch in alone])


def test_the_state_of_a_loader_whose_stream_is_empty(shared_daemon):
    with loader(iterables.Draws(0)) as ours:
        assert [list(ours) for _ in range(3)] == [[], [], []]
        assert ours.state_dict()["epoch"] == 3


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_data_loader_of_one_is_taken_over(shared_daemon, batch_size):
    theirs = DataLoader(iterables.Scaled(3), batch_size)
    with PrefetchLoader.wrap(theirs) as ours:
        assert equal(list(ours), list(theirs))
