"""How long a process had a CPU, and how long it stood in line for one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prefetchd.daemon.telemetry.cpu_times import cpu_times
from tests.scenario.waiting import until

LONG_ENOUGH_S = 0.3

pytestmark = pytest.mark.skipif(cpu_times(os.getpid()) is None, reason="this kernel does not count it")


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
        found = [cpu_times(child.pid) for child in spinning]
        return found if all(each.ran_s > LONG_ENOUGH_S for each in found) else None

    for each in until(times, "both have run"):
        assert each.waited_s > each.ran_s / 3, "each gets half of it, or less where others are about"
        assert each.process_s == pytest.approx(each.ran_s, abs=0.1), "it has one thread"
    asleep = cpu_times(sleeping.pid)
    assert asleep.ran_s < LONG_ENOUGH_S
    assert asleep.state == "S"


def test_all_threads_of_a_process_count_and_only_the_main_one_s_waits(bound):
    child = bound(
        "import threading\n"
        "def spin():\n"
        "    while True: pass\n"
        "threading.Thread(target=spin).start()\n"
        "threading.Event().wait()"
    )
    found = until(lambda: (each := cpu_times(child.pid)).process_s > LONG_ENOUGH_S and each, "its thread has run")
    assert found.ran_s < found.process_s / 2


def test_a_process_that_is_gone_has_none(bound):
    child = bound("")
    child.wait()
    assert cpu_times(child.pid) is None
