"""`prefetchd demo`, as a person runs it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, runtime_paths

GONE_WITHIN_S = 10

# The demo imports no torch; and a server of interpreters would have the first demo's TMPDIR, and be taken for its own.
pytestmark = pytest.mark.executed


class Demo:
    """A running demo whose temporary files go to a directory of the test's own."""

    def __init__(self, temporary, cache, *arguments):
        self.temporary = temporary
        environment = dict(os.environ, TMPDIR=str(self.temporary), XDG_CACHE_HOME=str(cache), COLUMNS="100")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prefetchd", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def read_until(self, part):
        """Its lines up to the first that has `part` in it."""
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if part in line:
                return lines
        raise AssertionError("".join(lines))

    def segment_prefix(self):
        """Of the shared memory of its daemon, which runs."""
        (socket,) = self.temporary.glob("*/d.sock")
        return f"{SEGMENT_PREFIX}{runtime_paths(socket).instance}-"

    def check_nothing_is_left(self, segment_prefix):
        psutil.wait_procs(self._processes(), timeout=GONE_WITHIN_S)
        assert not [each.cmdline() for each in self._processes()]
        assert not [name for name in os.listdir("/dev/shm") if name.startswith(segment_prefix)]
        assert not list(self.temporary.iterdir())

    def _processes(self):
        """Daemon, workers, trainers: whatever has the demo's own directory in its environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get("TMPDIR", "").startswith(str(self.temporary)):
                    found.append(process)
        return found


@pytest.fixture
def start(tmp_path):
    """Starts a demo; one that still runs at the test's end is killed."""
    demos = []
    # tmp_path is too long for the sockets that the demo keeps there.
    with tempfile.TemporaryDirectory(prefix="demo-") as temporary:

        def begin(*arguments):
            demos.append(Demo(Path(temporary), tmp_path / "cache", *arguments))
            return demos[-1]

        yield begin
        for demo in demos:
            if demo.process.poll() is None:
                demo.process.terminate()
            demo.process.stdout.close()
            demo.process.wait()


SMALL = ("--epochs", "1", "--batch-size", "4", "--workers", "2")
LOADERS = ["prefetchd", "DataLoader", "prefetchd, sample cache"]


@pytest.mark.slow
def test_from_the_pictures_to_the_bars(start):
    demo = start("--images", "40", "--step-ms", "5", *SMALL)
    lines = demo.read_until("  killed at step ")
    prefix = demo.segment_prefix()
    rest, _ = demo.process.communicate()
    assert demo.process.returncode == 0, rest
    lines += rest.splitlines(keepends=True)
    said = "".join(lines)
    assert lines[0].startswith("A stand-in for a GPU trains: each step lasts 5 ms, asleep")
    assert not any(control in said for control in "\x1b\r")
    # Each is killed, and goes on to validate.
    assert said.count("killed at step 6 of 9 of epoch 1, and started again") == 3
    assert len(re.findall(r"epoch 1  loss \S+  validation loss ", said)) == 3
    bars = re.findall(r"^  (\S.*?) +[█▏▎▍▌▋▊▉]+ ([\d.]+) m?s$", said, re.M)
    assert [name for name, _ in bars] == LOADERS * 4
    assert all(float(figure) > 0 for _, figure in bars[3:])
    assert re.search(r"the same with all to the last digit: training \d\.\d+, validation \d\.\d+\.", unwrapped(said))
    assert ready_after_the_restart(said) > 0
    demo.check_nothing_is_left(prefix)


def unwrapped(said):
    return " ".join(said.split())


def ready_after_the_restart(said):
    """The batches that the new trainer found."""
    found = re.search(r"The new trainer found (\d+) batches ready in the ring of \d+\.", unwrapped(said))
    assert found is not None, said
    return int(found[1])


@pytest.mark.slow
def test_on_the_cpu_with_pictures_of_one_s_own_ctrl_c_leaves_nothing(start, tmp_path):
    for place in range(16):
        path = tmp_path / "data" / ("cat" if place % 2 else "dog") / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 50, 3), place * 9, np.uint8)).save(path)
    demo = start("--train-on-cpu", "--data", str(tmp_path / "data"), *SMALL, "--epochs", "1000")
    lines = demo.read_until("epoch 1 ")
    prefix = demo.segment_prefix()
    demo.process.send_signal(signal.SIGINT)
    rest, _ = demo.process.communicate()
    assert demo.process.returncode == 130
    assert "Traceback" not in rest
    assert lines[0].startswith("A small network trains on the CPUs")
    assert not (tmp_path / "cache").exists(), "no pictures are made"
    demo.check_nothing_is_left(prefix)


def test_a_step_s_length_is_a_stand_in_s(start):
    demo = start("--train-on-cpu", "--step-ms", "20")
    said, _ = demo.process.communicate()
    assert demo.process.returncode == 2
    assert "--step-ms is the length of a stand-in's step; --train-on-cpu has none" in said


def test_data_that_is_not_there_is_named(start, tmp_path):
    demo = start("--data", str(tmp_path / "nowhere"))
    said, _ = demo.process.communicate()
    assert demo.process.returncode == 2
    assert str(tmp_path / "nowhere") in said
    assert "does not exist" in said


def test_data_without_classes_is_named(start, tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "picture.jpg").touch()
    demo = start("--data", str(tmp_path / "flat"))
    said, _ = demo.process.communicate()
    assert demo.process.returncode == 2
    assert f"{tmp_path / 'flat'} has no directories in it" in said
