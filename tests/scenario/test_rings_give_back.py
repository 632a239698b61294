"""A ring gives back what its trainer has not needed for a minute, and before that what another one needs.

Minutes are six seconds here: the daemon is the real one but for that.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from tests.scenario.waiting import ring_when, stream_when, until

ROW_BYTES = 50_000
BATCH = 8
ALL_BYTES = 20_000_000
FIRST_SLOTS = 24
"""What half of that holds. Their memory is reserved step by step."""
HASTY = """
import sys
from prefetchd.cli.main import main
from prefetchd.tuning import ring_spare, ring_tuner
ring_spare.KEPT_S = ring_tuner.KEPT_S = ring_tuner.HOLD_S = 6.0
ring_spare.RUNWAY_S = 1.0
sys.argv = sys.argv[1:]
main()
"""


class Rows(Dataset):
    """Two workers make 60 batches of 0.4 MB a second."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((ROW_BYTES,), index % 251, dtype=torch.uint8)


@pytest.fixture
def hasty_daemon(daemon):
    """One whose minutes are short, and whose rings may take ALL_BYTES."""
    command = [sys.executable, "-c", HASTY, "prefetchd", "run", "--autotune", "--memory", str(ALL_BYTES)]
    with open(daemon.socket.with_name("printed"), "wb") as printed:
        process = subprocess.Popen(command, env=daemon.environment, stdout=printed, stderr=subprocess.STDOUT)
    until(lambda: daemon.socket.exists(), "the daemon runs")
    yield daemon
    process.terminate()
    assert process.wait(timeout=20) == 0


class Taker:
    """A trainer that looks at what it gets."""

    def __init__(self, stream: str) -> None:
        self.loader = PrefetchLoader(Rows(), batch_size=BATCH, stream=stream, num_workers=2, buffer=None)
        self._batches = iter(self.loader)
        self._taken = 0

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            found = next(self._batches)[:, 0].tolist()
            first = BATCH * self._taken
            assert found == [index % 251 for index in range(first, first + BATCH)]
            self._taken += 1


def slots(daemon, stream: str, least: int = 1) -> int:
    """How many it has, once it has so many; what was told before it had a ring is older than the batches that were
    taken."""
    return ring_when(daemon, stream, lambda ring: ring["slots"] >= least)["ring"]["slots"]


def memory_bytes(daemon) -> int:
    """Returns what the daemon's segments have of memory."""
    return sum(512 * os.stat(Path("/dev/shm", each)).st_blocks for each in daemon.segments())


def test_what_nobody_needs_is_given_back(hasty_daemon):
    trainer = Taker("calm")
    with trainer.loader:
        trainer.take()
        first = slots(hasty_daemon, "calm", FIRST_SLOTS)
        ring_when(hasty_daemon, "calm", lambda ring: ring["ready"] >= first - 2, "a full ring")
        full_bytes = memory_bytes(hasty_daemon)
        deadline_s = time.monotonic() + 60
        # It takes five batches a second.
        while slots(hasty_daemon, "calm") > 10:
            assert time.monotonic() < deadline_s
            trainer.take()
            time.sleep(0.2)
        found = stream_when(hasty_daemon, "calm")
        assert found["tuning"][0]["why"].endswith("were enough in the last 6 s")
        freed_bytes = (first - found["ring"]["slots"]) * BATCH * ROW_BYTES
        assert memory_bytes(hasty_daemon) <= full_bytes - freed_bytes
        trainer.take(40)


def test_what_another_needs_is_given_to_it(hasty_daemon):
    with contextlib.ExitStack() as stack:
        one, other = Taker("one"), Taker("other")
        stack.enter_context(one.loader)
        stack.enter_context(other.loader)
        one.take()
        other.take()
        first = slots(hasty_daemon, "one", FIRST_SLOTS)
        ring_when(hasty_daemon, "one", lambda ring: ring["ready"] >= first - 1, "it is full")
        # Of what rings may take, all but this one's: more the other one has only when this one has given some up.
        beside = ALL_BYTES // stream_when(hasty_daemon, "one")["ring"]["slot_bytes"] - first
        # It takes some 25 s where nothing is beside it.
        deadline_s = time.monotonic() + 80
        while slots(hasty_daemon, "other") <= beside:
            changes = {each: stream_when(hasty_daemon, each)["tuning"] for each in ("one", "other")}
            assert time.monotonic() < deadline_s, json.dumps(changes)
            # In bursts, with enough time between them to fill the ring, which takes all that there is room for.
            other.take(60)
            time.sleep(1.5)
            # A ring gives up slots as their batches are used; nothing is taken of it while it has more than it needs.
            if any(each["why"] == "stream 'other' needs it" for each in changes["one"]):
                one.take(first)
        one.take(20)
