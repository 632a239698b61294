"""The daemon is killed: the trainer goes on with what is ready, and another daemon with the ring."""

from __future__ import annotations

import os
import signal
from collections import Counter

import psutil
from prefetchd_client import PrefetchLoader

from prefetchd.diagnosis.verdict import judge
from prefetchd.wire.stream_spec import UNIDENTIFIED
from tests.scenario.datasets import Dice, Numbers, equal
from tests.scenario.deadly_datasets import LeavesAWriter
from tests.scenario.lookback_trainer import BATCH, Told
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import is_gone, ring_when, stream_when, until


def kill(daemon):
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def name_of(loader):
    return loader.stats()["stream"]


def full(daemon, loader, ready):
    def is_full(stream: dict) -> bool:
        # Nobody but its trainer finds a ring of which it is not known what it is of.
        return (stream["ring"] or {}).get("ready") == ready and stream["fingerprint"] != UNIDENTIFIED

    stream_when(daemon, name_of(loader), is_full, "its ring is full")


def test_every_batch_comes_though_the_daemon_is_killed_again_and_again(daemon):
    daemon.start()
    with PrefetchLoader(Dice(400), batch_size=4, shuffle=True, seed=5, buffer=8) as loader:
        for epoch in range(2):
            seen = []
            for step, batch in enumerate(loader):
                seen.append([each.clone() for each in batch])
                if step == 40:
                    kill(daemon)
            assert equal(seen, epoch_batches(Dice(400), epoch, batch_size=4, seed=5, shuffle=True))
        assert loader.stats()["reconnections"] == 2


def test_a_trainer_that_ends_without_a_daemon_leaves_nothing(daemon):
    daemon.start()
    loader = PrefetchLoader(Numbers(400), batch_size=4, buffer=16)
    kept, _ = next(iter(loader))
    kill(daemon)
    loader.close()
    assert daemon.segments() == [daemon.paths.status_segment[1:]]
    assert kept[:, 0].tolist() == [0, 1, 2, 3]
    daemon.start()


def test_status_names_a_trainer_that_has_yet_to_come_back(daemon):
    """Found as "nobody consumes it", while the trainer took batches that were ready."""
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=16) as loader:
        iterator = iter(loader)
        next(iterator)
        full(daemon, loader, 15)
        kill(daemon)
        daemon.start()
        found = stream_when(daemon, name_of(loader))
        assert found["absent_consumers"] == [os.getpid()]
        assert "has not connected to this daemon yet" in judge(found, {}).text
        while not loader.stats()["reconnections"]:
            next(iterator)
        stream_when(daemon, name_of(loader), lambda stream: not stream["absent_consumers"], "it has come back")


def test_not_one_ready_batch_is_computed_again(daemon, tmp_path):
    daemon.start()
    dataset = Told(tmp_path / "calls")
    with PrefetchLoader(dataset, batch_size=BATCH, buffer=32) as loader:
        iterator = iter(loader)
        first = next(iterator)
        full(daemon, loader, 31)
        kill(daemon)
        daemon.start()
        while not loader.stats()["reconnections"]:
            # It hears of the end in one of them, and has come back in a later one.
            assert next(iterator)[0][0] == BATCH * (loader.stats()["yielded"] - 1)
        consumed = loader.stats()["yielded"]
        for step in range(consumed, 60):
            assert next(iterator)[0][0] == BATCH * step
        made = Counter(dataset.steps())
        # One sample of the first was made to measure it. Of the last ones some may not be whole yet.
        assert {made[step] for step in range(1, 60)} == {BATCH}
        assert max(made[step] for step in range(60, 100)) <= BATCH
        assert first[0].tolist() == [0, 1, 2, 3]


def test_batches_that_are_held_stay_as_they_are(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(4000), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        kept = [next(iterator) for _ in range(3)]
        kept[1][0].zero_()
        kill(daemon)
        for step in range(3, 100):
            assert next(iterator)[1][0] == 4 * step
        assert [batch[0][0, 0] for batch in kept] == [0, 0, 8]
        assert loader.stats()["reconnections"] == 1


def test_all_die_and_the_next_trainer_finds_the_ring(daemon):
    """A ring is adopted by its lock, whoever comes first."""
    daemon.start()
    loader = PrefetchLoader(Numbers(4000), batch_size=4, buffer=32, stream="orphan")
    iterator = iter(loader)
    next(iterator)
    full(daemon, loader, 31)
    kill(daemon)
    loader.abandon()
    with PrefetchLoader(Numbers(4000), batch_size=4, buffer=32, stream="orphan") as again:
        iterator = iter(again)
        next(iterator)
        stream = stream_when(daemon, "orphan")
        assert [next(iterator)[1][0].item() for _ in range(20)] == [4 * step for step in range(1, 21)]
        assert stream["produced_batches"] <= 3


def test_a_daemon_that_is_stopped_in_order_is_started_again_for_a_trainer_that_goes_on(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        next(iterator)
        daemon.command("stop")
        assert [batch[1][0].item() for batch in iterator] == [4 * step for step in range(1, 100)]


def test_what_a_living_process_may_write_to_is_left_alone_by_the_next_daemon(daemon, tmp_path):
    daemon.start()
    told = tmp_path / "pid"
    with PrefetchLoader(LeavesAWriter(told), batch_size=4, buffer=32, timeout=30) as loader:
        iterator = iter(loader)
        taken = [next(iterator).tolist()]
        writer = int(until(lambda: told.exists() and told.read_text(), "a process has the ring open"))
        try:
            # Else what its workers have started would end with the daemon: whoever sees to that is killed, too.
            os.kill(daemon.pid, signal.SIGSTOP)
            for zygote in [each for each in daemon.processes() if each.name() == "prefetchd-zyg"]:
                zygote.kill()
            kill(daemon)
            daemon.start()

            def left_alone() -> int:
                adopted = stream_when(daemon, name_of(loader), lambda stream: stream["ring"], "the ring is adopted")
                return int(adopted["ring"]["quarantined"])

            slots = left_alone()
            assert 0 < slots < 16
            taken += [batch.tolist() for batch in iterator]
            assert left_alone() == slots
        finally:
            os.kill(writer, signal.SIGKILL)
        ring_when(daemon, name_of(loader), lambda ring: ring["quarantined"] == 0, "it is used again")
    assert taken == [list(range(first, first + 4)) for first in range(0, 64, 4)]


def test_its_children_die_with_it(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        next(iter(loader))
        processes = daemon.processes()
        waiting = [each for each in processes if each.name() == "prefetchd-zyg"]
        kill(daemon)
        _, alive = psutil.wait_procs([each for each in processes if each not in waiting], timeout=10)
        assert not alive
        # The trainer hands its fork to the next daemon, and there is none.
    _, alive = psutil.wait_procs(waiting, timeout=10)
    assert not alive
    daemon.start()
