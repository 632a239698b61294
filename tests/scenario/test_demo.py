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


def test_from_the_pictures_to_the_table(start):
    demo = start("--images", "40", "--epochs", "1", "--batch-size", "4", "--workers", "2")
    lines = demo.read_until("epoch 1 ")
    prefix = demo.segment_prefix()
    rest, _ = demo.process.communicate()
    assert demo.process.returncode == 0, rest
    lines += rest.splitlines(keepends=True)
    rows = {line[:31].strip(): line[31:].split() for line in lines}
    assert any(line.split() == ["prefetchd", "DataLoader"] for line in lines)
    assert [float(figure) > 0 for figure in rows["img/s"]] == [True, True]
    for title in ("first batch", "stalled", "first batch after the restart"):
        assert len(rows[title]) == 4, rows[title]
    assert not any(control in "".join(lines) for control in "\x1b\r")
    # The daemon tells of its ring four times a second, and the first epoch may be over before.
    assert ["ring" in line for line in lines if "epoch 2 " in line] == [True, False]
    assert ready_after_the_restart("".join(lines)) > 0
    demo.check_nothing_is_left(prefix)


def ready_after_the_restart(said):
    """The batches that the new trainer found."""
    found = re.search(r"The new trainer found (\d+) batches ready in the ring of \d+\.", " ".join(said.split()))
    assert found is not None, said
    return int(found[1])


def test_pictures_of_one_s_own(start, tmp_path):
    for place in range(16):
        path = tmp_path / "data" / ("cat" if place % 2 else "dog") / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 50, 3), place * 9, np.uint8)).save(path)
    demo = start("--data", str(tmp_path / "data"), "--epochs", "1", "--batch-size", "4", "--workers", "2")
    prefix = demo.segment_prefix() if demo.read_until("epoch 1 ") else ""
    said, _ = demo.process.communicate()
    assert demo.process.returncode == 0, said
    assert "16 images" in said
    assert ready_after_the_restart(said) > 0
    assert not (tmp_path / "cache").exists(), "no pictures are made"
    demo.check_nothing_is_left(prefix)


def test_ctrl_c_leaves_nothing(start):
    demo = start("--images", "40", "--epochs", "1000", "--batch-size", "4", "--workers", "2")
    demo.read_until("epoch 1 ")
    prefix = demo.segment_prefix()
    demo.process.send_signal(signal.SIGINT)
    said, _ = demo.process.communicate()
    assert demo.process.returncode == 130
    assert "Traceback" not in said
    demo.check_nothing_is_left(prefix)


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
