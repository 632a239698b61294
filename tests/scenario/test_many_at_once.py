"""Many batches, many sessions, many streams, many processes on one daemon: each gets what is its own, and nothing
piles up."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client import loader as loader_module

from prefetchd.cli.snapshot import read_report
from prefetchd.wire.errors import CallerError
from tests.scenario.datasets import Made, Numbers
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.watching import open_fds, report_when, stream_when, until

pytestmark = pytest.mark.usefixtures("shared_daemon")

MIB = 1 << 20


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
    until(lambda: settled() == before, f"the daemon has its {before} descriptors again")
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


@pytest.mark.xfail(strict=True, reason="a stream that lingers with a full ring keeps its zygote and all its workers")
def test_loaders_without_a_name_that_come_and_go_leave_no_more_than_a_few_processes(shared_daemon):
    """A script that makes a loader for every fold or trial."""
    for _ in range(12):
        with PrefetchLoader(Numbers(8), batch_size=4, buffer=6, fingerprint_extra=random.random()) as loader:
            assert len(list(loader)) == 2
    assert len(shared_daemon.processes()) < 20


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


def test_the_neediest_stream_is_served_first(daemon):
    """One worker for two streams: one trainer reads its batches as they come, the other never reads. The one that reads
    is not kept waiting until the other's ring, with room for far more, is full."""
    daemon.start("--workers", "1")
    with (
        PrefetchLoader(Made(_ten_ms, 4000), batch_size=1, buffer=2000, stream="hoarder") as hoarder,
        PrefetchLoader(Made(_ten_ms, 4000), batch_size=1, buffer=4, stream="reader") as reader,
    ):
        next(iter(hoarder))
        iterator = iter(reader)
        next(iterator)
        before = stream_when(daemon, "hoarder")["produced_batches"]
        assert [int(batch) for batch, _ in zip(iterator, range(60))] == list(range(1, 61))
        produced = stream_when(daemon, "hoarder")["produced_batches"]
        assert produced - before < 180, "the worker filled the hoarder's ring meanwhile"
        stream_when(daemon, "hoarder", lambda stream: stream["produced_batches"] > produced, "it goes on by and by")


@pytest.mark.xfail(strict=True, reason="a worker tells of finished tasks only when the next ones of the message are done")
def test_a_slow_sample_holds_up_no_batch_before_it(daemon):
    daemon.start("--workers", "1")
    with PrefetchLoader(Made(_stuck_at_eight, 24), batch_size=4, buffer=8, timeout=3) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        assert next(iterator).tolist() == [4, 5, 6, 7]


def test_watermarks_hold_filling_back_and_let_it_go_on(shared_daemon, monkeypatch):
    """Filling stops at the high one and goes on below the low one. (No argument of the loader sets them yet.)"""
    resolve = loader_module.stream_request

    def with_watermarks(**arguments):
        request = resolve(**arguments)
        spec = dataclasses.replace(request.spec, low_watermark=3, high_watermark=8)
        return dataclasses.replace(request, spec=spec)

    monkeypatch.setattr(loader_module, "stream_request", with_watermarks)

    def at_rest(produced):
        stream_when(
            shared_daemon,
            "watered",
            lambda stream: stream["produced_batches"] == produced and not any(w["busy"] for w in stream["workers"]),
            f"{produced} batches are made and nobody works",
        )

    with PrefetchLoader(Numbers(400), batch_size=4, buffer=16, stream="watered") as loader:
        iterator = iter(loader)
        for _ in range(6):
            at_rest(8)
            next(iterator)
        at_rest(6 + 8)


# --- several processes ---

READS_A_STREAM = """
    import sys
    from prefetchd_client import PrefetchLoader
    from tests.scenario.datasets import Numbers

    stream = None if sys.argv[1] == "-" else sys.argv[1]
    loader = PrefetchLoader(Numbers(40), batch_size=4, buffer=8, stream=stream)
    iterator = iter(loader)
    seen = next(iterator)[1].tolist()
    print(loader.stats()["stream"], flush=True)
    sys.stdin.readline()
    for batch, index in iterator:
        seen += index.tolist()
        batch.fill_(-1)  # what one writes, the other must not see
    print(seen == list(range(40)), loader.stats()["private_copies"] > 0, flush=True)
    sys.stdin.readline()
    loader.close()
"""


class Reader:
    """A process that runs READS_A_STREAM, step by step."""

    def __init__(self, daemon, script, stream):
        self.process = subprocess.Popen(
            [sys.executable, str(script), stream],
            env=daemon.environment | {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self):
        return self.process.stdout.readline().split()

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def readers(shared_daemon, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(READS_A_STREAM))
    started = []

    def start(stream="-"):
        started.append(Reader(shared_daemon, script, stream))
        return started[-1]

    yield start
    for reader in started:
        reader.end()


def test_processes_of_one_script_get_streams_of_their_own(readers, shared_daemon):
    first, second = readers(), readers()
    names = sorted([first.hear()[0], second.hear()[0]])
    assert names[1] == f"{names[0]}#2"
    for reader in (first, second):
        reader.go_on()
        assert reader.hear() == ["True", "False"]
    assert set(names) <= set(streams(shared_daemon))


def test_processes_that_name_a_stream_share_it_and_neither_sees_what_the_other_writes(readers, shared_daemon):
    first, second = readers("together"), readers("together")
    assert first.hear() == second.hear() == ["together"]
    stream = stream_when(shared_daemon, "together", lambda found: len(found["consumers"]) == 2, "both consume it")
    assert {each["pid"] for each in stream["consumers"]} == {first.process.pid, second.process.pid}
    for reader in (first, second):
        reader.go_on()
    assert [reader.hear() for reader in (first, second)] == [["True", "True"]] * 2
    with pytest.raises(CallerError, match="in use") as caught:
        PrefetchLoader(Numbers(44), batch_size=4, buffer=8, stream="together")
    assert "stream=" in str(caught.value)
    first.go_on()
    second.go_on()
    assert first.process.wait(30) == second.process.wait(30) == 0


def test_a_shared_stream_survives_the_death_of_one_of_its_consumers(readers, shared_daemon):
    first, second = readers("bereft"), readers("bereft")
    assert first.hear() == second.hear() == ["bereft"]
    first.process.kill()
    first.process.wait()
    stream_when(shared_daemon, "bereft", lambda found: len(found["consumers"]) == 1, "the dead one is gone")
    second.go_on()
    assert second.hear() == ["True", "True"]


def _ten_ms(index):
    time.sleep(0.01)
    return torch.tensor(index)


def _stuck_at_eight(index):
    if index == 8:
        time.sleep(600)
    return index
