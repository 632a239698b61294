"""What `python -m benchmarks.chaos` has found once, by name."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from prefetchd_client import PrefetchLoader

from prefetchd.wire.file_locks import is_locked, reopen
from prefetchd.wire.framing import close_all
from prefetchd.wire.segment_layout import CONSUMER_LOCK_OFFSET, CONSUMERS
from tests.scenario.datasets import Numbers
from tests.scenario.forked import forked, told_by
from tests.scenario.waiting import is_gone, open_fds, open_rings, stream_when, until

ROOT = Path(__file__).parents[2]
EXECUTED = {"PREFETCHD_START": "exec"}
NUMBERS = {"batch_size": 4, "buffer": 8, "stream": "numbers"}


def kill(daemon):
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def test_a_program_that_was_never_handed_over_is_gone_soon(daemon):
    daemon.start()
    code = "from tests.scenario.datasets import Numbers; from prefetchd_client import PrefetchLoader; "
    trainer = subprocess.run(
        [sys.executable, "-c", code + "PrefetchLoader(Numbers())"],
        env=daemon.environment | EXECUTED | {"PREFETCHD_KILL_POINTS": "client.program.unsent", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert trainer.returncode == -signal.SIGKILL
    until(lambda: not [each for each in daemon.segments() if "-program-" in each], "its program is gone")


NEVER_HANDS_OVER = """
import signal, sys
from prefetchd_client import PrefetchLoader
from prefetchd_client.session.handshake import Handshake
from tests.scenario.datasets import Numbers

def never(*_):
    print("asked", flush=True)
    signal.pause()

Handshake.hand_over = never
PrefetchLoader(Numbers(40), batch_size=4, stream="shared")
"""


@pytest.mark.usefixtures("executed")
def test_who_shares_a_stream_hands_the_program_over_for_one_that_died_before_it_had(daemon):
    daemon.start()
    environment = daemon.environment | EXECUTED | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", NEVER_HANDS_OVER], env=environment, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"asked\n"
        with PrefetchLoader(Numbers(40), batch_size=4, stream="shared") as loader:
            first.kill()
            found = [index.tolist() for _, index in loader]
            assert found == [list(range(first, first + 4)) for first in range(0, 40, 4)]
            assert loader.stats()["reconnections"] == 0


def test_a_loader_that_was_closed_while_its_batch_lived_leaves_no_descriptor(daemon):
    """Nor its mapping, in the end: a dropped ring's memory is given back without the garbage collector."""
    daemon.start()
    gc.disable()
    try:
        for _ in range(2):
            with PrefetchLoader(Numbers(40), **NUMBERS) as loader:
                kept = next(iter(loader))
            del loader
            before = open_fds(os.getpid())
            del kept
        assert open_fds(os.getpid()) < before
        with PrefetchLoader(Numbers(40), **NUMBERS) as loader:
            next(iter(loader))
        del loader
        assert not [each for each in maps() if daemon.paths.instance in each]
    finally:
        gc.enable()


def maps() -> list[str]:
    with open("/proc/self/maps") as found:
        return found.readlines()


def test_a_closed_loader_whose_batches_live_keeps_no_other_waiting(daemon):
    """It never comes back to the next daemon: that must not keep the rest of the ring for it."""
    daemon.start()
    former = PrefetchLoader(Numbers(400), **NUMBERS)
    kept = next(iter(former))
    with PrefetchLoader(Numbers(400), **NUMBERS) as loader:
        iterator = iter(loader)
        next(iterator)
        former.close()
        kill(daemon)
        for step in range(1, 100):
            assert next(iterator)[1][0] == 4 * step
        assert kept[1].tolist() == [0, 1, 2, 3]


def test_what_a_dead_daemon_had_offered_is_not_taken_from_a_ring_that_another_goes_on_with(daemon):
    """A trainer that had not looked yet was not attached to the ring: nobody knew that something was meant for it."""
    daemon.start()
    with PrefetchLoader(Numbers(400), **NUMBERS) as late:
        stream_when(daemon, "numbers", lambda stream: stream["ring"] and stream["ring"]["ready"] == 8, "all is offered")
        kill(daemon)
        with PrefetchLoader(Numbers(400), **NUMBERS) as loader:
            for step, (_, numbers) in zip(range(50), loader):
                assert numbers[0] == 4 * step
            assert [int(numbers[0]) for _, numbers in late] == list(range(0, 400, 4))


def test_a_held_batch_outlives_its_daemon_though_another_process_has_the_closed_loaders_lock(daemon):
    """A fork that has not yet closed what it inherited has it, for a moment: here until the next loader is there. That
    one was taken for dead by the next daemon, and its batch was overwritten."""
    daemon.start()
    first = PrefetchLoader(Numbers(40), **NUMBERS)
    assert sum(1 for _ in first) == 10
    inherited = [os.dup(fd) for fd in open_rings()]
    first.close()
    assert inherited
    with PrefetchLoader(Numbers(40), **NUMBERS) as second:
        iterator = iter(second)
        kept = next(iterator)
        was = [each.clone() for each in kept]
        close_all(inherited)
        kill(daemon)
        for _ in range(3):
            assert len(list(iterator)) in (9, 10)
            iterator = iter(second)
        assert all(map(torch.equal, kept, was))


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_fork_of_a_trainer_that_holds_batches_has_none_of_its_locks(daemon, is_closed):
    """The tensors keep the mapping in the fork, too, and that its descriptor."""

    def locked_records():
        """As another description sees them: one of ours does not see its own locks."""
        look = reopen(next(fd for fd in open_rings() if daemon.paths.instance in os.readlink(f"/proc/self/fd/{fd}")))
        try:
            return sum(is_locked(look, CONSUMER_LOCK_OFFSET + record) for record in range(CONSUMERS))
        finally:
            os.close(look)

    def outlives():
        os.read(let_go, 1)
        return locked_records()

    daemon.start()
    loader = PrefetchLoader(Numbers(40), **NUMBERS)
    kept = next(iter(loader))
    if is_closed:
        loader.close()
        del loader
        gc.collect()
    assert locked_records() == 1
    let_go, say = os.pipe()
    child = forked(outlives)
    if not is_closed:
        loader.close()
    assert kept[1].tolist() == [0, 1, 2, 3]
    del kept
    os.write(say, b"x")
    assert told_by(child) == "0"
    close_all([let_go, say])
