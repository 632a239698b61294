"""How long a process had a CPU, and how long it stood in line for one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prefetchd.daemon.telemetry.cpu_times import cpu_times_s
from tests.scenario.watching import until

LONG_ENOUGH_S = 0.3

pytestmark = pytest.mark.skipif(cpu_times_s(os.getpid()) is None, reason="this kernel does not count it")


@pytest.fixture
def bound():
    """bound(code) runs it in a process, all of them on one CPU."""
    cpu = min(os.sched_getaffinity(0))
    children = []

    def run(code):
        child = subprocess.Popen([sys.executable, "-Sc", code])
        children.append(child)
        os.sched_setaffinity(child.pid, {cpu})
        return child

    yield run
    for child in children:
        child.kill()
        child.wait()


def test_two_that_want_one_cpu_wait_for_each_other(bound):
    spinning = [bound("while True: pass") for _ in range(2)]
    sleeping = bound("import time; time.sleep(600)")

    def times():
        found = [cpu_times_s(child.pid) for child in spinning]
        return found if all(ran_s > LONG_ENOUGH_S for ran_s, _ in found) else None

    for ran_s, waited_s in until(times, "both have run"):
        assert waited_s > ran_s / 3, "each gets half of it, or less where others are about"
    ran_s, _ = cpu_times_s(sleeping.pid)
    assert ran_s < LONG_ENOUGH_S


def test_a_process_that_is_gone_has_none(bound):
    child = bound("")
    child.wait()
    assert cpu_times_s(child.pid) is None
