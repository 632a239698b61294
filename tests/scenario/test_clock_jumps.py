"""The wall clock is set while a daemon and trainers run: nobody notices."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from prefetchd.cli.render import render
from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from tests.scenario.set_clock import SetClock
from tests.scenario.waiting import report_when, stream_when, until

HOUR_S = 3600
DAY_S = 24 * HOUR_S

# Sets the clock in the middle of its epoch, and tells what it saw of that and of its batches.
TRAINER = """
import json, os, sys, time
from prefetchd_client import PrefetchLoader
from tests.scenario.datasets import Dice, equal
from tests.scenario.oracle import epoch_batches
from tests.scenario.set_clock import VARIABLE, set_ahead

jumps = json.loads(sys.argv[1])
with PrefetchLoader(Dice(400), batch_size=4, shuffle=True, seed=5, buffer=8, timeout=100, stream="timeless") as loader:
    seen, clocks = [], []
    for step, batch in enumerate(loader):
        seen.append([each.clone() for each in batch])
        if step % 10 == 9 and jumps:
            before = time.time() - time.monotonic()
            set_ahead(os.environ[VARIABLE], jumps.pop(0))
            clocks.append(round(time.time() - time.monotonic() - before))
    right = equal(seen, epoch_batches(Dice(400), 0, batch_size=4, seed=5, shuffle=True))
print(json.dumps([right, clocks]))
"""


@pytest.fixture
def clock(daemon, tmp_path):
    """A clock of the daemon's and the trainers' own."""
    try:
        found = SetClock(tmp_path)
    except LookupError as missing:
        pytest.skip(str(missing))
    daemon.environment |= found.environment
    return found


def test_the_clock_jumps_by_days_while_training(daemon, clock):
    jumps = [DAY_S, -DAY_S, 400 * DAY_S, -HOUR_S, 0]
    daemon.start("--idle-exit", "900")
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, json.dumps(jumps)],
        env=daemon.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    right, seen = json.loads(done.stdout)
    assert seen == [after - before for before, after in zip([0, *jumps], jumps)], "the trainer's clock was set"
    assert right, "every batch came, and was the right one"
    assert "waiting for" not in done.stderr, "no wait was taken for a long one"
    clock.set(DAY_S)
    report_when(
        daemon, lambda report: report.snapshot["taken_unix_s"] > time.time() + DAY_S / 2, "the daemon's was set"
    )
    assert stream_when(daemon, "timeless")["lingering"], "the ring has not lingered for a day"


@pytest.mark.parametrize("ahead_s", [-2 * HOUR_S, 2 * HOUR_S], ids=["forward", "back"])
def test_status_of_a_daemon_that_was_started_before_the_clock_was_set(daemon, clock, ahead_s):
    """The daemon's clock was wrong when it started, and this process's is right: as if it was set in between."""
    clock.set(ahead_s)
    daemon.start()
    report = read_report(daemon.paths)
    assert abs(report.snapshot["daemon"]["started_unix_s"] - time.time()) > HOUR_S, "its clock was another"
    assert report.state == "running"
    assert 0 <= report.snapshot["daemon"]["up_s"] < HOUR_S
    assert " h " not in render(status_object(report), daemon.socket)[0], "nor is its uptime wrong"


def test_a_ring_lingers_out_though_the_clock_is_set_back(daemon, clock):
    daemon.start("--linger-clean", "1")
    subprocess.run([sys.executable, "-c", TRAINER, "[]"], env=daemon.environment, capture_output=True, check=True)
    clock.set(-DAY_S)
    report_when(daemon, lambda report: not report.snapshot["streams"], "the ring has lingered out")
    until(lambda: len(daemon.segments()) == 1, "its segments are gone")
