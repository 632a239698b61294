"""What happens to daemons, trainers and rings that no other file has: docs/reliability.md lists all events."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.status.snapshot import read_report
from tests.conftest import daemon_aside
from tests.scenario.datasets import Dice, Numbers, equal
from tests.scenario.oracle import epoch_batches
from tests.scenario.orders import trainer
from tests.scenario.waiting import is_gone, report_when, stopped, stream_when, until


def firsts(begin: int, end: int) -> list[int]:
    """The first indices of these steps of Numbers in batches of 4."""
    return [4 * step for step in range(begin, end)]


def is_full(ready: int):
    """Of a stream: so many batches are ready."""
    return lambda stream: stream["ring"] is not None and stream["ring"]["ready"] == ready


# --- both are killed ---


def test_daemon_and_trainer_are_killed_at_once_and_the_next_trainer_finds_the_ring(daemon):
    daemon.start()
    with trainer(daemon) as victim:
        victim.ask("begin", "orphan", 4000, 32)
        assert victim.ask("next", 3) == firsts(0, 3)

        def is_full_and_written(stream: dict) -> bool:
            return (stream["ring"] or {}).get("free") == 0 and stream["program_kept"]

        full = stream_when(daemon, "orphan", is_full_and_written, "its ring is full, its program written")
        ready = full["ring"]["ready"]
        children = daemon.processes()
        for pid in (daemon.pid, victim.process.pid):
            os.kill(pid, signal.SIGKILL)
        victim.process.wait()
        psutil.wait_procs(children, timeout=20)
    left = daemon.segments()
    assert len(left) == 3, "status, program, ring"
    with PrefetchLoader(Numbers(4000), batch_size=4, buffer=32, stream="orphan") as loader:
        assert [name for name in daemon.segments() if "-ring-" in name] == [name for name in left if "-ring-" in name]
        loader.load_state_dict(loader.state_dict() | {"step": 3})
        iterator = iter(loader)
        assert [next(iterator)[1][0].item() for _ in range(29)] == firsts(3, 32)
        # What nobody was handed is there; of what the dead one had, nothing is served again.
        made = stream_when(daemon, "orphan")["produced_batches"]
        assert [index[0].item() for _, index in iterator] == firsts(32, 1000)
    assert made <= 3 + 29 + 32 - 3 - ready, "of those that were ready none was made again"


# --- a trainer is killed as soon as it has said Hello ---


def test_a_trainer_that_dies_before_its_hello_is_read_does_not_hold_its_stream(daemon):
    """Found by chaos: it was taken for a consumer after its end, for as long as the daemon lived."""
    daemon.start()
    code = (
        "import os, sys; from tests.scenario.raw_peer import Peer, trainer_hello\n"
        "Peer(sys.argv[1]).say(trainer_hello('hasty')); os._exit(0)"
    )
    with stopped(daemon):
        subprocess.run([sys.executable, "-c", code, str(daemon.socket)], check=True)

    def consumed(report) -> set[str]:
        return {stream["name"] for stream in report.snapshot["streams"] if stream["consumers"]}

    # Whoever connects later is heard later.
    with PrefetchLoader(Numbers(40), batch_size=4, stream="another"):
        report_when(daemon, lambda report: consumed(report) == {"another"}, "the dead one consumes nothing")


# --- a ring lingers out ---


@pytest.fixture(scope="module")
def brief(tmp_path_factory):
    """A daemon whose rings do not linger for long."""
    with daemon_aside(tmp_path_factory.mktemp("brief")) as found:
        found.start("--linger", "0.5", "--linger-clean", "0.5")
        yield found


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "killed"])
def test_a_ring_lingers_out_and_the_next_trainer_gets_everything_anew(brief, crash):
    with trainer(brief) as former:
        former.ask("begin", "brief", 400, 8)
        assert former.ask("next", 5) == firsts(0, 5)
        if crash:
            former.signal(signal.SIGKILL)
        else:
            former.ask("close")
        report_when(brief, lambda report: not report.snapshot["streams"], "the ring has lingered out")
    until(lambda: brief.segments() == [brief.paths.status_segment[1:]], "its segments are gone")
    assert '"ring lingered out"' in brief.paths.log.read_text()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="brief", socket=str(brief.socket)) as loader:
        assert [index[0].item() for _, index in loader] == firsts(0, 100)


def test_a_ring_with_a_consumer_does_not_linger(brief):
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="kept", socket=str(brief.socket)) as loader:
        iterator = iter(loader)
        next(iterator)
        came_s = read_report(brief.paths).snapshot["daemon"]["up_s"]
        report_when(brief, lambda report: report.snapshot["daemon"]["up_s"] > came_s + 1, "its time would be over")
        assert not stream_when(brief, "kept")["lingering"]
        assert [index[0].item() for _, index in iterator] == firsts(1, 100)


# --- somebody is stopped, and goes on ---


def zygotes(daemon) -> list[psutil.Process]:
    """Those that workers are forks of; others may be about to end, such as the one that takes the fingerprint."""
    parents = {parent.pid for each in workers(daemon) if (parent := each.parent()) is not None}
    return [each for each in daemon.processes() if each.pid in parents]


def workers(daemon) -> list[psutil.Process]:
    return [each for each in daemon.processes() if each.name().startswith("prefetchd-w")]


@contextlib.contextmanager
def all_stopped(processes: list[psutil.Process]):
    """They do nothing meanwhile."""
    assert processes
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


@pytest.mark.parametrize("whom", [workers, zygotes])
def test_workers_or_zygotes_are_stopped_and_nothing_is_lost(shared_daemon, whom):
    """What is ready is yielded meanwhile; nobody is taken for dead."""
    with PrefetchLoader(Dice(400), batch_size=4, shuffle=True, seed=5, buffer=16, stream=whom.__name__) as loader:
        iterator = iter(loader)
        seen = [next(iterator)]
        stream_when(shared_daemon, whom.__name__, is_full(15), "its ring is full")
        victims = whom(shared_daemon)
        with all_stopped(victims):
            until(lambda: all(map(is_stopped, victims)), "they are stopped")
            seen += [[each.clone() for each in next(iterator)] for _ in range(10)]
        seen += [[each.clone() for each in batch] for batch in iterator]
        assert equal(seen, epoch_batches(Dice(400), 0, batch_size=4, seed=5, shuffle=True))
        assert stream_when(shared_daemon, whom.__name__)["worker_deaths"] == 0
        assert all(each.is_running() for each in victims)


class _SlowDice(Dice):
    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


def test_stopped_workers_do_not_outlive_their_killed_daemon(daemon):
    """They were about to write: nothing of it comes into a batch of the next daemon's."""
    daemon.start("--workers", "2")
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5, "num_workers": 2, "buffer": 16}
    with PrefetchLoader(_SlowDice(400), **arguments, stream="held") as loader:
        iterator = iter(loader)
        seen = [next(iterator)]
        victims = until(lambda: len(found := workers(daemon)) == 2 and found, "there are two workers")
        with all_stopped(victims):
            until(lambda: all(map(is_stopped, victims)), "they are stopped")
            pid = daemon.pid
            os.kill(pid, signal.SIGKILL)
            until(lambda: all(map(is_gone, [pid, *(each.pid for each in victims)])), "all are gone")
        seen += [[each.clone() for each in batch] for batch in iterator]
        assert equal(seen, epoch_batches(Dice(400), 0, batch_size=4, seed=5, shuffle=True))
        assert loader.stats()["reconnections"] == 1


def test_the_daemon_is_stopped_and_goes_on(shared_daemon):
    """The trainer goes on with what it was offered, and then with the rest. No other daemon is started."""
    shared_daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=16, stream="patient") as loader:
        iterator = iter(loader)
        next(iterator)
        stream_when(shared_daemon, "patient", is_full(15), "its ring is full")
        with stopped(shared_daemon):
            # Of a stream that may be shared half of the ring is offered.
            assert [next(iterator)[1][0].item() for _ in range(7)] == firsts(1, 8)
        assert [index[0].item() for _, index in iterator] == firsts(8, 100)
        assert loader.stats()["reconnections"] == 0


def test_a_trainer_is_stopped_and_others_are_not_held_up(shared_daemon):
    """Neither on another stream, nor on the one that it shares."""
    with trainer(shared_daemon) as victim:
        victim.ask("begin", "shared", 40, 8)
        victim.ask("next", 2)
        for stream in ("shared", "other"):
            with PrefetchLoader(Numbers(40), batch_size=4, buffer=8, stream=stream) as loader:
                next(iter(loader))
                victim.signal(signal.SIGSTOP)
                until(lambda: is_stopped(psutil.Process(victim.process.pid)), "it is stopped")
                for _ in range(5):
                    assert [index[0].item() for _, index in loader] == firsts(0, 10)
                victim.signal(signal.SIGCONT)
        assert victim.ask("next", 20) == firsts(2, 10)


def test_a_stopped_trainer_s_daemon_is_killed_and_it_loses_nothing(daemon):
    daemon.start()
    with trainer(daemon) as victim:
        victim.ask("begin", "sleeper", 400, 8)
        assert victim.ask("next", 2) == firsts(0, 2)
        victim.signal(signal.SIGSTOP)
        pid = daemon.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid), "the daemon is dead")
        daemon.start()
        victim.signal(signal.SIGCONT)
        assert victim.ask("next", 200) == firsts(2, 100)
        victim.ask("close")


def test_a_stopped_trainer_s_daemon_is_killed_and_who_shares_its_stream_goes_on(daemon):
    """What both were offered is kept for the stopped one, and made again in what is free."""
    daemon.start()
    with trainer(daemon) as victim:
        victim.ask("begin", "shared", 40, 8)
        assert victim.ask("next", 1) == firsts(0, 1)
        with PrefetchLoader(Numbers(40), batch_size=4, buffer=8, stream="shared", timeout=60) as loader:
            batches = iter(loader)
            assert next(batches)[1][0].item() == 0
            victim.signal(signal.SIGSTOP)
            os.kill(daemon.pid, signal.SIGKILL)
            assert [index[0].item() for _, index in batches] == firsts(1, 10)
            victim.signal(signal.SIGCONT)
        assert victim.ask("next", 20) == firsts(1, 10)
