"""Who has used the CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from prefetchd.daemon.telemetry.cpu_load import OVER_S, CpuLoad
from prefetchd.daemon.telemetry.cpu_times import TICK_S, cpu_times
from tests.scenario.waiting import until


@pytest.fixture
def spinning():
    """spinning() starts a process that computes; its pid."""
    children = []

    def start():
        children.append(subprocess.Popen([sys.executable, "-Sc", "while True: pass"]))
        return children[-1].pid

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_of_three_processes_each_is_counted_where_it_belongs(spinning):
    own, trainer, other = (spinning() for _ in range(3))
    load = CpuLoad()
    load.observe(time.monotonic(), [own], [trainer])
    began = {pid: cpu_times(pid).process_s for pid in (own, trainer, other)}

    def all_have_run():
        return all(cpu_times(pid).process_s - before > 0.4 for pid, before in began.items())

    until(all_have_run, "they have run")
    load.observe(time.monotonic(), [own], [trainer])
    about = load.about()
    assert about["cpus"] == len(os.sched_getaffinity(0))
    for kind in ("own", "trainers", "others"):
        assert about[kind] * about["over_s"] > 0.3, kind
    assert about["own"] + about["trainers"] + about["others"] == pytest.approx(about["busy"])


def stat(path, *busy_s):
    lines = [f"cpu{number} {round(each / TICK_S)} 0 0 999 888 0 0 0 0 0" for number, each in enumerate(busy_s)]
    path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 12345"]))


def test_only_the_cpus_that_may_be_used_count_and_neither_idling_nor_waiting_for_a_disk(tmp_path):
    path = tmp_path / "stat"
    load = CpuLoad(frozenset([1, 2]), str(path))
    stat(path, 0.0, 0.0, 0.0)
    load.observe(100.0, [], [])
    assert load.about() is None
    stat(path, 50.0, 1.0, 0.5)
    load.observe(101.0, [], [])
    assert load.about() == {"over_s": 1.0, "cpus": 2.0, "busy": 1.5, "own": 0.0, "trainers": 0.0, "others": 1.5}


def test_only_the_last_seconds_count(tmp_path):
    path = tmp_path / "stat"
    load = CpuLoad(frozenset([0]), str(path))
    for second in range(100):
        stat(path, min(second, 50))
        load.observe(float(second), [], [])
    assert load.about()["busy"] == 0.0
    assert OVER_S <= load.about()["over_s"] < OVER_S + 2


def test_where_nobody_counts_nothing_is_said(tmp_path):
    load = CpuLoad(frozenset([0]), str(tmp_path / "none"))
    for second in range(3):
        load.observe(float(second), [os.getpid()], [])
    assert load.about() is None
