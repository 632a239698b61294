"""The files that one batch passes are those that docs/architecture.md names, measured with everything real."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prefetchd_client import PrefetchLoader

from tests.scenario.call_tracing import CallTracer, files_by_window
from tests.scenario.datasets import Numbers
from tests.scenario.foreground import answers
from tests.scenario.waiting import until
from tests.unit.docs.draw import ROOT
from tests.unit.docs.one_batch import files_of_the_walk

WINDOWS = range(1, 11)


@pytest.fixture
def tracer(daemon, tmp_path):
    """Traces this process, a daemon, and the workers, which are forked from here."""
    program = [sys.executable, "-m", "tests.scenario.call_tracing", str(tmp_path), "run"]
    process = subprocess.Popen(program, cwd=ROOT, env=daemon.environment, stderr=subprocess.DEVNULL)
    before = sys.getprofile()
    try:
        until(lambda: answers(daemon), "the daemon answers")
        sys.setprofile(found := CallTracer(tmp_path))
        yield found
    finally:
        sys.setprofile(before)
        process.terminate()
        process.wait(30)


@pytest.mark.executed
def test_one_batch_passes_the_files_of_the_walk(tracer, tmp_path):
    with PrefetchLoader(Numbers(4000), batch_size=8, shuffle=True, num_workers=2, buffer=4) as loader:
        iterator = iter(loader)
        for _ in range(20):
            next(iterator)
        for window in WINDOWS:
            tracer.set_window(window)
            for _ in range(8):
                next(iterator)
        tracer.set_window(0)
    found = files_by_window(tmp_path)
    assert sorted(found) == [*WINDOWS]
    # The last of the start, and a snapshot, are in some windows and not in others.
    assert sorted(set.intersection(*found.values())) == sorted(files_of_the_walk())
