"""Many batches, many sessions, many streams on one daemon: each gets what is its own, and nothing piles up."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time

import psutil
import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.loader import loader as loader_module
from prefetchd_client.session import long_wait

from prefetchd.status.snapshot import read_report
from prefetchd.wire.messages import Welcome
from tests.conftest import daemon_aside
from tests.scenario.datasets import Made, Numbers
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.waiting import open_fds, report_when, stopped, stream_when, until

pytestmark = pytest.mark.usefixtures("shared_daemon")

MIB = 1 << 20
MANY_STREAMS = 300


def rss_bytes(daemon):
    return psutil.Process(daemon.pid).memory_info().rss


def streams(daemon):
    return {stream["name"]: stream for stream in read_report(daemon.paths).snapshot["streams"]}


# --- nothing piles up ---


def test_two_hundred_sessions_leave_neither_descriptors_nor_memory(shared_daemon):
    def a_round():
        with PrefetchLoader(Numbers(16), batch_size=4, buffer=6, stream="again and again") as loader:
            assert len(list(loader)) == 4
        with Peer(shared_daemon.socket) as peer:
            peer.say(control_hello())
            peer.hear()
        with Peer(shared_daemon.socket) as peer:
            peer.say(trainer_hello())
            peer.hear()

    def settled():
        report_when(
            shared_daemon,
            lambda report: not report.snapshot["daemon"]["sessions"] and "raw" not in streams(shared_daemon),
            "all sessions are over",
        )
        return open_fds(shared_daemon.pid)

    for _ in range(10):
        a_round()
    before, memory_before = settled(), rss_bytes(shared_daemon)
    for _ in range(67):
        a_round()
    # Idle workers may have retired meanwhile.
    until(lambda: settled() <= before, f"the daemon has no more than its {before} descriptors")
    assert rss_bytes(shared_daemon) - memory_before < 4 * MIB
    assert len([name for name in streams(shared_daemon) if name.startswith("again")]) == 1


def test_many_batches_leave_no_memory(shared_daemon):
    with PrefetchLoader(Numbers(8000), batch_size=4, shuffle=True, buffer=64, stream="long run") as loader:
        for _ in range(2):
            assert sum(1 for _ in loader) == 2000
        memory_before, own_before = rss_bytes(shared_daemon), psutil.Process().memory_info().rss
        for _ in range(4):
            assert sum(1 for _ in loader) == 2000
        assert rss_bytes(shared_daemon) - memory_before < 2 * MIB
        assert psutil.Process().memory_info().rss - own_before < 16 * MIB


def test_loaders_without_a_name_that_come_and_go_leave_no_more_than_a_few_processes(shared_daemon):
    """A script that makes a loader for every fold or trial."""
    for _ in range(12):
        with PrefetchLoader(Numbers(8), batch_size=4, buffer=6, fingerprint_extra=random.random()) as loader:
            assert len(list(loader)) == 2
    until(lambda: len(shared_daemon.processes()) < 20, "the processes of those before are gone")


def test_kept_batches_never_stop_a_small_ring():
    dice = random.Random(3)
    kept = []
    with PrefetchLoader(Numbers(1200), batch_size=4, buffer=4) as loader:
        for epoch in range(2):
            for step, (batch, index) in enumerate(loader):
                assert index[0] == step * 4, "out of order"
                if dice.random() < 0.2:
                    kept.append((batch, index.tolist()))
                if len(kept) > 40:
                    kept.pop(dice.randrange(len(kept)))
                for held, indices in dice.sample(kept, min(3, len(kept))):
                    assert held[:, 0].tolist() == indices, f"a kept batch changed in epoch {epoch}"
        for held, indices in kept:
            assert held[:, 0].tolist() == indices


# --- very many streams ---

ROUNDS = 300


def cpu_s_of_requests(daemon):
    """What the daemon itself takes to answer a further trainer and a control connection, again and again."""
    process = psutil.Process(daemon.pid)
    before = process.cpu_times()
    for _ in range(ROUNDS):
        for hello in (control_hello(), trainer_hello("further")):
            with Peer(daemon.socket) as peer:
                peer.say(hello)
                assert isinstance(peer.hear(), Welcome)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system


def test_very_many_streams_make_the_daemon_little_slower(daemon):
    """Found as seconds for each request beside 1,105 streams."""
    daemon.start()
    few = 3
    with contextlib.ExitStack() as peers:

        def streams_become(count):
            for number in range(len(opened), count):
                peer = peers.enter_context(Peer(daemon.socket))
                peer.say(trainer_hello(f"one of many {number}"))
                assert isinstance(peer.hear(), Welcome)
                opened.append(peer)

        opened = []
        streams_become(few)
        beside_few_s = cpu_s_of_requests(daemon)
        streams_become(MANY_STREAMS)
        beside_many_s = cpu_s_of_requests(daemon)
        report_when(daemon, lambda report: len(report.snapshot["streams"]) >= MANY_STREAMS, "status has all of them")
        # Of a hundred times as many streams each request would take a hundred times as long, were it gone through all
        # of them for it; six times is what the status costs, which tells of all.
        assert beside_many_s < 20 * max(beside_few_s, 0.05)


# --- streams side by side ---


def test_streams_of_different_datasets_run_side_by_side():
    plans = [(Numbers(60, width), width, batch) for width, batch in ((1, 4), (3, 6), (5, 10), (7, 12))]
    loaders = [PrefetchLoader(dataset, batch_size=batch, buffer=6) for dataset, _, batch in plans]
    try:
        iterators = [iter(loader) for loader in loaders]
        seen = [0] * len(plans)
        dice = random.Random(1)
        while any(count < 60 for count in seen):
            place = dice.choice([place for place, count in enumerate(seen) if count < 60])
            _, width, size = plans[place]
            batch, index = next(iterators[place])
            assert batch.shape == (size, width)
            assert index.tolist() == list(range(seen[place], seen[place] + size))
            seen[place] += size
        for iterator in iterators:
            with pytest.raises(StopIteration):
                next(iterator)
    finally:
        for loader in loaders:
            loader.close()


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A daemon with one worker at once."""
    with daemon_aside(tmp_path_factory.mktemp("single")) as daemon:
        daemon.start("--workers", "1")
        yield daemon


def test_the_neediest_stream_is_served_first(single):
    """One worker for two streams: one trainer reads its batches as they come, the other never reads. The one that reads
    is not kept waiting until the other's ring, with room for far more, is full."""
    arguments = {"batch_size": 1, "socket": str(single.socket)}
    with (
        PrefetchLoader(Made(_ten_ms, 4000), buffer=2000, stream="hoarder", **arguments) as hoarder,
        PrefetchLoader(Made(_ten_ms, 4000), buffer=4, stream="reader", **arguments) as reader,
    ):
        next(iter(hoarder))
        iterator = iter(reader)
        next(iterator)
        before = stream_when(single, "hoarder")["produced_batches"]
        assert [int(batch) for batch, _ in zip(iterator, range(60))] == list(range(1, 61))
        produced = stream_when(single, "hoarder")["produced_batches"]
        assert produced - before < 180, "the worker filled the hoarder's ring meanwhile"
        stream_when(single, "hoarder", lambda stream: stream["produced_batches"] > produced, "it goes on by and by")


def test_a_slow_sample_holds_up_no_batch_before_it(single):
    with PrefetchLoader(
        Made(_stuck_at_eight, 24), batch_size=4, buffer=8, timeout=60, socket=str(single.socket)
    ) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        assert next(iterator).tolist() == [4, 5, 6, 7]


def test_a_hung_sample_of_a_trainer_that_has_gone_holds_up_nobody_else(single):
    """The only worker that may be busy is busy for ever, for nobody."""
    arguments = {"batch_size": 4, "buffer": 8, "socket": str(single.socket)}
    with PrefetchLoader(Made(_stuck, 40), stream="hung", **arguments):
        stream_when(single, "hung", lambda stream: any(each["busy"] for each in stream["workers"]), "it is stuck")
    with PrefetchLoader(Numbers(40), timeout=3, stream="well", **arguments) as loader:
        next(iter(loader))


def test_a_long_wait_is_named_again_and_again_and_goes_on(shared_daemon, monkeypatch, capfd):
    monkeypatch.setattr(long_wait, "NAME_AFTER_S", 0.2)
    monkeypatch.setattr(long_wait, "NAME_AGAIN_S", 0.1)
    monkeypatch.setattr(long_wait, "DAEMON_NAMES_WITHIN_S", 0.0)
    with PrefetchLoader(Numbers(8000), batch_size=4, buffer=4, stream="waits") as loader:
        iterator = iter(loader)
        next(iterator)
        loader.timeout = 0.7
        with stopped(shared_daemon), pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.7 seconds"):
            list(iterator)
        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("prefetchd: waiting for")]
        assert len(said) >= 2
        assert "of stream 'waits'" in said[0]
        assert str(shared_daemon.paths.log) in said[0]
        loader.timeout = 0
        assert next(iterator) is not None, "it goes on when the daemon does"


def test_watermarks_hold_filling_back_and_let_it_go_on(shared_daemon, monkeypatch):
    """Filling stops at the high one and goes on below the low one. (No argument of the loader sets them yet.)"""
    resolve = loader_module.stream_request

    def with_watermarks(**arguments):
        request = resolve(**arguments)
        spec = dataclasses.replace(request.spec, low_watermark=3, high_watermark=8)
        return dataclasses.replace(request, spec=spec)

    monkeypatch.setattr(loader_module, "stream_request", with_watermarks)

    def at_rest(consumed, produced):
        stream_when(
            shared_daemon,
            "watered",
            lambda stream: (
                (stream["consumed_batches"], stream["produced_batches"]) == (consumed, produced)
                and not any(worker["busy"] for worker in stream["workers"])
            ),
            f"{consumed} batches are consumed, {produced} made, and nobody works",
        )

    with PrefetchLoader(Numbers(400), batch_size=4, buffer=9, stream="watered") as loader:
        iterator = iter(loader)
        for consumed in range(6):
            at_rest(consumed, 8)
            next(iterator)
        at_rest(6, 6 + 8)


def _ten_ms(index):
    time.sleep(0.01)
    return torch.tensor(index)


def _stuck(index):
    time.sleep(600)


def _stuck_at_eight(index):
    if index == 8:
        time.sleep(600)
    return index
