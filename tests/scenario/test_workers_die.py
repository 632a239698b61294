"""Workers are killed: by chance, which nobody notices; by a sample, which is named; for memory, which lowers their
number."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.daemon.engine.stream.blame import BLAMED_AFTER, SUSPECTED_AFTER
from prefetchd.wire.errors import WorkerDiedError
from tests.scenario.datasets import equal
from tests.scenario.deadly_datasets import Gathering, Greedy, Partly, Slow, as_a_list, deadly_collate
from tests.scenario.memory_groups import memory_group, start_in_group
from tests.scenario.oracle import batches_without_bad, epoch_batches
from tests.scenario.waiting import is_gone, report_when, stream_when, until

DEATHS_TO_BLAME = SUSPECTED_AFTER + BLAMED_AFTER


def worker_pids(daemon) -> list[int]:
    return pids_named(daemon, "prefetchd-w")


def pids_named(daemon, prefix) -> list[int]:
    found = []
    for process in daemon.processes():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(prefix):
                found.append(process.pid)
    return sorted(found)


# --- by chance ---

SIGNALS = [signal.SIGKILL, signal.SIGSEGV]


@pytest.mark.parametrize("collate_fn", [None, as_a_list], ids=["by rows", "whole"])
def test_ten_kills_at_random_are_not_noticed(shared_daemon, collate_fn):
    dataset, chance, kills = Slow(800, 0.001), random.Random(5), 0
    stream = f"killed {collate_fn}"
    with PrefetchLoader(dataset, 16, shuffle=True, buffer=4, collate_fn=collate_fn, stream=stream) as loader:
        batches = []
        for step, batch in enumerate(loader):
            batches.append(batch)
            if step % 4 == 3 and kills < 10:
                pids = until(lambda: worker_pids(shared_daemon), "there are workers")
                os.kill(chance.choice(pids), SIGNALS[kills % 2])
                kills += 1
    assert kills == 10
    if collate_fn is None:
        expected = epoch_batches(Slow(800, 0), 0, batch_size=16, shuffle=True)
    else:
        expected = batches_without_bad(Slow(800, 0), 0, "raise", batch_size=16, shuffle=True, collate_fn=collate_fn)
    assert equal(batches, expected)
    told = stream_when(shared_daemon, stream)
    assert told["failed_batches"] == 0
    assert 0 < told["worker_deaths"] <= 10


@pytest.mark.parametrize(
    ("start", "prefix"),
    [("fork", "prefetchd-zyg"), ("exec", "prefetchd-zyg"), ("exec", "prefetchd-env")],
    ids=["forked", "executed", "environment"],
)
def test_a_killed_zygote_is_not_noticed(daemon, monkeypatch, start, prefix):
    monkeypatch.setenv("PREFETCHD_START", start)
    dataset, kills = Slow(400, 0.001), 0
    with PrefetchLoader(dataset, 16, shuffle=True, buffer=4, stream="killed") as loader:
        batches = []
        for step, batch in enumerate(loader):
            batches.append(batch)
            if step % 10 == 3 and kills < 2:
                (pid,) = until(lambda: pids_named(daemon, prefix), "there is a zygote")
                os.kill(pid, SIGNALS[kills])
                until(lambda pid=pid: is_gone(pid), "the zygote is dead")
                kills += 1
    assert kills == 2
    assert equal(batches, epoch_batches(Slow(400, 0), 0, batch_size=16, shuffle=True))
    told = stream_when(daemon, "killed", lambda stream: stream["zygote_deaths"] == 2, "both deaths are counted")
    assert told["failed_batches"] == 0


# --- by a sample ---


@pytest.mark.parametrize("bad", [0, 5, 47])
@pytest.mark.parametrize(("kind", "collate_fn"), [(Partly, None), (Partly, as_a_list)], ids=["by rows", "whole"])
def test_a_sample_that_ends_its_workers_is_named_in_the_place_of_its_batch(shared_daemon, kind, collate_fn, bad):
    stream = f"{kind.__name__} {collate_fn} {bad}"
    with PrefetchLoader(kind(48, deadly=(bad,)), 4, buffer=6, collate_fn=collate_fn, stream=stream) as loader:
        iterator, errors = iter(loader), []
        for step in range(12):
            try:
                next(iterator)
            except WorkerDiedError as error:
                errors.append((step, error))
        assert next(iterator, None) is None
    ((step, error),) = errors
    assert step == bad // 4
    assert f"dataset[{bad}], epoch 0, step {step}" in str(error)
    assert "killed by SIGSEGV" in str(error)
    assert "on_error='skip'" in str(error)
    # The next epoch's batch with that sample fails as well, as soon as it is made.
    stream_when(
        shared_daemon, stream, lambda told: told["worker_deaths"] == DEATHS_TO_BLAME * told["failed_batches"] > 0
    )


@pytest.mark.parametrize(
    ("dataset", "collate_fn", "what"),
    [(Gathering(48, deadly=(5,)), None, "dataset.__getitems__"), (Partly(48), deadly_collate, "collate_fn")],
    ids=["getitems", "collate"],
)
def test_what_ends_workers_on_a_whole_batch_is_named(shared_daemon, dataset, collate_fn, what):
    with PrefetchLoader(dataset, 4, buffer=6, collate_fn=collate_fn) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(WorkerDiedError, match=f"{what}, epoch 0, step 1") as caught:
            next(iterator)
        assert "killed by SIG" in str(caught.value)
        assert len(list(iterator)) == 10


# --- for memory ---


def test_workers_that_are_killed_for_memory_become_fewer_and_nothing_is_blamed(daemon, monkeypatch):
    """In the daemon's own group: they were not forked from the trainer."""
    monkeypatch.setenv("PREFETCHD_START", "exec")
    with memory_group(1000 << 20) as group:
        start_in_group(daemon, group, "--workers", "4")
        with PrefetchLoader(Greedy(32, 300 << 20), 4, buffer=4, stream="greedy") as loader:
            assert [batch.tolist() for batch in loader] == [list(range(at, at + 4)) for at in range(0, 32, 4)]
        report = report_when(daemon, lambda report: report.snapshot["streams"], "the stream is there")
        assert report.snapshot["workers"]["limit"] < 4
        (stream,) = report.snapshot["streams"]
        assert stream["failed_batches"] == 0
        assert stream["worker_deaths"] > 0
        assert "workers are killed for memory" in daemon.paths.log.read_text()
        daemon.stop_and_check()


def test_a_sample_that_needs_more_memory_than_there_is_is_blamed(daemon, monkeypatch):
    monkeypatch.setenv("PREFETCHD_START", "exec")
    with memory_group(1000 << 20) as group:
        start_in_group(daemon, group, "--workers", "2")
        with (
            PrefetchLoader(Greedy(8, 1200 << 20), 4, buffer=4, stream="too greedy") as loader,
            pytest.raises(WorkerDiedError, match=r"dataset\[0\]") as caught,
        ):
            next(iter(loader))
        assert "killed by SIGKILL" in str(caught.value)
        daemon.stop_and_check()
