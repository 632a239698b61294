"""Whatever is below a process is ended, also what changes its parent meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prefetchd.processes import descendants
from prefetchd.processes.descendants import children, end_tree
from tests.scenario.waiting import is_gone, until

ROOT = """
import os, subprocess, sys
from prefetchd.processes.orphans import become_subreaper
become_subreaper()
parent = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
print(parent.pid, parent.stdout.readline(), flush=True)
sys.stdin.read()
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def three():
    """A subreaper, a child of it, and a child of that: their pids."""
    command = [sys.executable, "-c", ROOT, PARENT]
    root = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    parent, child = map(int, root.stdout.readline().split())
    yield root.pid, parent, child
    root.stdin.close()
    root.stdout.close()
    root.wait(30)
    for pid in (parent, child):
        if not is_gone(pid):
            os.kill(pid, 9)


def test_all_that_is_below_is_ended(three):
    root, parent, child = three
    end_tree(root)
    until(lambda: is_gone(parent) and is_gone(child), "both are gone")
    assert not is_gone(root)


@pytest.mark.parametrize("dies_at", [1, 2, 3], ids=["before its children are listed", "then", "after that"])
def test_one_that_is_given_to_the_root_meanwhile_is_ended_too(three, monkeypatch, dies_at):
    """Found as a process in a session of its own that outlived `prefetchd stop`: its worker died while the daemon
    looked at what was below the zygote."""
    root, parent, child = three
    asked = []

    def listed(pid: int = 0) -> set[int]:
        # A list of its own is asked for twice, before and after it is opened.
        asked.append(pid)
        if pid == parent and asked.count(parent) == dies_at:
            os.kill(parent, 9)
            until(lambda: child in children(root), "the root has its child")
        return children(pid)

    monkeypatch.setattr(descendants, "children", listed)
    end_tree(root)
    until(lambda: is_gone(child), "it is gone")
    assert asked.count(parent) >= dies_at
