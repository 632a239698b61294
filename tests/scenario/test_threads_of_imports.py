"""Threads that a dataset's imports start keep zygotes from forking: the trainer is told which, and what that costs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.executed

STARTS_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="my-thread", daemon=True).start()

class Numbers:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return float(index)
"""

TRAINER = """
from prefetchd_client import PrefetchLoader
from starts_a_thread import Numbers
for stream in ("first", "second"):
    with PrefetchLoader(Numbers(), 4, num_workers=1, stream=stream) as loader:
        print([batch.tolist() for batch in loader])
"""


def test_the_trainer_is_told_once_by_the_threads_own_names_and_with_the_cost(daemon, tmp_path):
    (tmp_path / "starts_a_thread.py").write_text(STARTS_A_THREAD)
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    environment = daemon.environment | {"PREFETCHD_START": "exec"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]\n" * 2
    told = [line for line in done.stderr.splitlines() if "started threads" in line]
    assert len(told) == 1, done.stderr
    assert "started threads (my-thread), which no fork survives" in told[0]
    cost = re.search(r"about ([0-9.]+) s of CPU and ([0-9]+) MB of memory each", told[0])
    assert cost, told[0]
    # torch alone is more than that.
    assert float(cost[1]) > 0
    assert int(cost[2]) > 20
