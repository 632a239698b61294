"""A dataset that prints without end hurts itself alone: the daemon serves others meanwhile, and its log stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Made, Numbers
from tests.scenario.waiting import report_when, stream_when, until

pytestmark = pytest.mark.usefixtures("shared_daemon")

NEWLINES, LONG_LINES = b"\n" * 4096, b"x" * 300_000 + b"\n"
GROWTH_BYTES = 24 << 20
EPOCHS = 8


class Prints:
    """The worker goes on printing, in a thread, when its first sample is made."""

    def __init__(self, what: bytes) -> None:
        self.what = what
        self.begun = False

    def __call__(self, index: int) -> int:
        if not self.begun:
            self.begun = True
            threading.Thread(target=self.print, daemon=True).start()
        return index

    def print(self) -> None:
        while True:
            os.write(1, self.what)


def log_bytes(daemon) -> int:
    return sum(file.stat().st_size for file in daemon.paths.log.parent.glob(f"{daemon.paths.log.name}*"))


@pytest.mark.parametrize("what", [NEWLINES, LONG_LINES], ids=["newlines", "long lines"])
def test_others_are_served_while_one_prints_without_end(shared_daemon, capfd, what):
    said = ""

    def told() -> bool:
        nonlocal said
        list(floods)
        said += capfd.readouterr().err
        return "of the log too" in said

    name = f"prints {len(what)}"
    with PrefetchLoader(Made(Prints(what), 4), batch_size=4, num_workers=1, stream=name) as floods:
        next(iter(floods))
        left_out = stream_when(shared_daemon, name, lambda it: it["output_lines_left_out"], "lines are left out")
        pid, before_bytes = shared_daemon.pid, log_bytes(shared_daemon)
        memory_before = psutil.Process(pid).memory_info().rss
        with PrefetchLoader(Numbers(40), batch_size=4, num_workers=1, stream="beside it") as loader:
            for _ in range(EPOCHS):
                assert len(list(loader)) == 10
        shared_daemon.command("pause", name)
        shared_daemon.command("resume", name)
        until(told, "the trainer is told that lines are left out")
        more = left_out["output_lines_left_out"]
        stream_when(shared_daemon, name, lambda it: it["output_lines_left_out"] > more, "it still prints")
        assert shared_daemon.pid == pid
        assert log_bytes(shared_daemon) - before_bytes < 2 << 20, "the log has room for others' lines"
        assert psutil.Process(pid).memory_info().rss - memory_before < GROWTH_BYTES


TRAINER = """
import sys
from prefetchd_client import PrefetchLoader
from tests.scenario.test_printing_without_end import Prints
from tests.scenario.datasets import Made
with PrefetchLoader(Made(Prints(b"a line\\n"), 4), batch_size=4, num_workers=1, stream="shared printing",
                    buffer=6) as loader:
    first = True
    while True:
        for batch in loader:
            if first:
                print("has a batch", flush=True)
                first = False
"""


def test_trainers_that_are_killed_while_their_worker_prints_end_nothing(shared_daemon):
    """Of several trainers of one stream, each is told what the worker prints."""
    trainers = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINER],
            env=shared_daemon.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(3)
    ]
    try:
        for trainer in trainers:
            assert trainer.stdout.readline() == b"has a batch\n"
        pid = shared_daemon.pid
        for killed, trainer in enumerate(trainers[:2], 1):
            trainer.kill()
            stream_when(
                shared_daemon,
                "shared printing",
                lambda it, left=3 - killed: len(it["consumers"]) == left,
                "the dead one is gone",
            )
        left_out = stream_when(shared_daemon, "shared printing")["output_lines_left_out"]
        stream_when(shared_daemon, "shared printing", lambda it: it["output_lines_left_out"] > left_out, "it prints on")
        assert shared_daemon.pid == pid
    finally:
        for trainer in trainers:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
            trainer.stdout.close()
        report_when(shared_daemon, lambda report: not report.snapshot["daemon"]["sessions"], "all are gone")
