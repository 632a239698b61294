"""What people do at a terminal and in notebooks: Ctrl-C, and datasets that no file has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.scenario.waiting import stream_when

INTERRUPTED = """
import sys, time
from prefetchd_client import PrefetchLoader

class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.02)
        return index

loader = PrefetchLoader(Slow(), batch_size=4, buffer=8, stream="interrupted")
for step, batch in enumerate(loader):
    if step == 2:
        print("here", flush=True)
    if {waits}:
        time.sleep(0.001)
    elif step > 2:
        time.sleep(100)
"""

CELLS = [
    """
    import torch
    from prefetchd_client import PrefetchLoader
    FACTOR = 2

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 10
        def __getitem__(self, index):
            return index * index * FACTOR
    """,
    "loader = PrefetchLoader(Squares(), batch_size=5); print([batch.tolist() for batch in loader])",
    "FACTOR = 3",
    "print([batch.tolist() for batch in PrefetchLoader(Squares(), batch_size=5)])",
    """
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 5
        def __getitem__(self, index):
            return -index
    """,
    "loader = PrefetchLoader(Squares(), batch_size=5); print([batch.tolist() for batch in loader])",
]

NOTEBOOK = """
import json, sys
# A notebook's kernel runs each cell in __main__, which has no file.
del __file__
for number, cell in enumerate(json.load(sys.stdin)):
    exec(compile(cell, f"<ipython-input-{number}>", "exec"), globals())
"""


@pytest.mark.parametrize("waits", [True, False], ids=["in next()", "elsewhere"])
def test_ctrl_c_ends_the_trainer_and_nothing_else(daemon, tmp_path, waits):
    script = tmp_path / "train.py"
    script.write_text(INTERRUPTED.format(waits=waits))
    # A terminal sends SIGINT to all processes of the group: the daemon that the trainer has started is not in it.
    trainer = subprocess.Popen(
        [sys.executable, str(script)],
        env=daemon.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert trainer.stdout.readline() == "here\n"
        pid = daemon.pid
        os.killpg(trainer.pid, signal.SIGINT)
        _, said = trainer.communicate(timeout=60)
    finally:
        trainer.kill()
        trainer.wait()
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert said.count("Traceback") == 1, said
    assert trainer.returncode == -signal.SIGINT
    found = stream_when(daemon, "interrupted", lambda stream: not stream["consumers"])
    assert (found["worker_deaths"], found["failed_batches"]) == (0, 0)
    assert daemon.pid == pid


def test_cells_of_a_notebook(daemon, tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, str(kernel)],
        env=daemon.environment,
        input=json.dumps([textwrap.dedent(cell) for cell in CELLS]),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [[0, 2, 8, 18, 32], [50, 72, 98, 128, 162]],
        [[0, 3, 12, 27, 48], [75, 108, 147, 192, 243]],
        [[0, -1, -2, -3, -4]],
    ]
