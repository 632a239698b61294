"""Iterable datasets that say where they stand: whoever goes on there makes no sample twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from functools import partial

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import CallerError
from prefetchd.wire.shard_states import MOST_BYTES
from tests.scenario import iterables
from tests.scenario.datasets import equal
from tests.scenario.waiting import is_gone, until

BATCH = 4


def loader(dataset, workers: int = 3, **options) -> PrefetchLoader:
    return PrefetchLoader(dataset, BATCH, num_workers=workers, seed=5, **options)


def made(notes) -> list[int]:
    return [int(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def taken(dataset, count: int, workers: int = 3, **options) -> tuple[list, dict]:
    """The first `count` batches, and the state after them."""
    with loader(dataset, workers, **options) as first:
        iterator = iter(first)
        return [next(iterator) for _ in range(count)], json.loads(json.dumps(first.state_dict()))


@pytest.fixture
def notes(tmp_path):
    return tmp_path / "notes"


@pytest.fixture
def later(tmp_path):
    """Of another loader: the first one's stream may go on for a while."""
    return tmp_path / "later"


@pytest.fixture
def straight(tmp_path) -> list:
    """Two epochs without a break, made without a daemon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFETCHD_INLINE", "1")
        with loader(iterables.Counting(tmp_path / "others")) as found:
            return [list(found) for _ in range(2)]


@pytest.mark.parametrize("inline", ["", "1"])
def test_another_loader_goes_on_where_the_first_one_was(shared_daemon, straight, notes, later, monkeypatch, inline):
    monkeypatch.setenv("PREFETCHD_INLINE", inline)
    first, state = taken(iterables.Counting(notes), 17, fresh=True)
    assert equal(first, straight[0][:17])
    assert [row[:2] for row in sorted(state["shards"])] == [[0, 6], [1, 6], [2, 5]]
    with loader(iterables.Counting(later), fresh=True) as second:
        second.load_state_dict(state)
        assert second.state_dict() == state
        rest = list(second)
        assert equal(rest, straight[0][17:])
        of_these = sorted(index for batch in rest for index in batch[0].tolist())
        assert sorted(made(later)[: len(of_these)]) == of_these, "nothing that was consumed is made again"
        assert "shards" not in second.state_dict()
        assert equal(list(second), straight[1])


def test_a_state_that_its_iterator_tells(shared_daemon, notes, later):
    first, state = taken(iterables.Steps(notes), 5, workers=1, fresh=True)
    assert [index for batch in first for index in batch.tolist()] == list(range(20))
    with loader(iterables.Steps(later), workers=1, fresh=True) as second:
        second.load_state_dict(state)
        assert [index for batch in second for index in batch.tolist()] == list(range(20, 60))
    assert min(made(later)[:40]) == 20


def test_a_state_that_is_too_long_to_be_told_is_kept_and_gone_through(shared_daemon, notes, later, straight):
    _, state = taken(iterables.Counting(notes, ballast=MOST_BYTES), 10, fresh=True)
    assert len(state["shards"]) == 3
    with loader(iterables.Counting(later, ballast=MOST_BYTES), fresh=True) as second:
        second.load_state_dict(state)
        assert equal(list(second), straight[0][10:])
    assert 0 in made(later)


def test_killed_workers_are_followed_by_others_that_begin_near(daemon, straight, notes):
    daemon.start("--workers", "3")
    found = []
    with loader(iterables.Counting(notes), buffer=4) as ours:
        for number, batch in enumerate(ours):
            found.append(batch)
            if number in (15, 30):
                # Longer than workers wait before they tell again.
                time.sleep(0.6)
            if number in (18, 33):
                for worker in [each for each in daemon.processes() if each.name().startswith("prefetchd-w")]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        worker.kill()
    assert equal(found, straight[0])
    counts = [made(notes).count(index) for index in range(9)]
    assert max(counts) <= 2, f"the first samples were made {counts} times, twice in the two epochs that were begun"


def test_a_daemon_that_takes_over_is_told_by_the_trainer(daemon, straight, notes):
    daemon.start("--workers", "2")
    found = []
    with loader(iterables.Counting(notes), buffer=4) as ours:
        for number, batch in enumerate(ours):
            found.append(batch)
            if number == 30:
                pid = daemon.pid
                os.kill(pid, signal.SIGKILL)
                until(lambda pid=pid: is_gone(pid), "the daemon is dead")
                before = len(made(notes))
                daemon.start("--workers", "2")
    assert equal(found, straight[0])
    assert min(made(notes)[before : before + 4]) > 60, "the next daemon's workers begin where the trainer was"


def test_a_state_that_cannot_be_loaded_is_an_error_in_its_place(shared_daemon, notes):
    _, state = taken(iterables.Broken(notes), 3, workers=1, fresh=True)
    with loader(iterables.Broken(notes), workers=1, fresh=True) as second:
        second.load_state_dict(state)
        with pytest.raises(RuntimeError, match="no such state"):
            next(iter(second))


@pytest.mark.parametrize("shards", [[[0, 1]], [["a", 1, ""]], "abc", 7, [[0, 1, "%"]]])
def test_shards_that_are_none(shared_daemon, notes, shards):
    _, state = taken(iterables.Steps(notes), 1, workers=1)
    with loader(iterables.Steps(notes), workers=1) as found, pytest.raises(CallerError):
        found.load_state_dict(state | {"shards": shards})


def with_pid(sample: dict) -> dict:
    return {"x": sample["x"], "pid": os.getpid()}


def buffered_batches(killed_at: int = -1) -> list[list[int]]:
    """Batches of one of Hugging Face's with a shuffle buffer, whose worker is killed while that batch is in hand."""
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"x": list(range(120))}).to_iterable_dataset(num_shards=1).map(with_pid)
    found = []
    with loader(stream.shuffle(seed=1, buffer_size=20).with_format("torch"), 1, buffer=4) as batches:
        for batch in batches:
            found.append(batch["x"].tolist())
            if len(found) == killed_at:
                pid = int(batch["pid"][0])
                os.kill(pid, signal.SIGKILL)
                until(partial(is_gone, pid), "the worker is dead")
    return found


def test_what_was_in_a_shuffle_buffer_is_given_though_its_worker_dies(shared_daemon):
    """Found as 36 of 240 samples that nobody saw: the state of such a dataset leaves out its buffer."""
    undisturbed = buffered_batches()
    assert sorted(each for batch in undisturbed for each in batch) == list(range(120))
    assert buffered_batches(killed_at=9) == undisturbed
