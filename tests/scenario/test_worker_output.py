"""What the user's code prints in a worker comes to the trainer and the log, whatever it is, and stops nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Made
from tests.scenario.waiting import until

pytestmark = pytest.mark.usefixtures("shared_daemon")


@pytest.mark.parametrize("line", ["Ж" * 5000, "🚂" * 3000, "x" * 100_000], ids=["two bytes", "four bytes", "long"])
def test_long_lines_are_cut_and_end_nothing(shared_daemon, capfd, line):
    with PrefetchLoader(Made(_Prints(line), 4), batch_size=4, buffer=6) as loader:
        next(iter(loader))
        pid = shared_daemon.pid
        until(lambda: _drained(loader) and line[:500] in capfd.readouterr().err, "a line has come")
    assert shared_daemon.pid == pid


def test_bytes_that_are_no_text_end_nothing(capfd):
    """Each of them takes three when it is shown."""
    with PrefetchLoader(Made(_binary, 4), batch_size=4, buffer=6) as loader:
        until(lambda: _drained(loader) and "\ufffd" * 500 in capfd.readouterr().err, "a line has come")


def test_a_flood_is_thinned_and_told(shared_daemon, capfd):
    said = ""

    def told():
        nonlocal said
        _drained(loader)
        said += capfd.readouterr().err
        return "lines left out (see `prefetchd logs`)" in said

    with PrefetchLoader(Made(_flood, 4), batch_size=4, buffer=6) as loader:
        next(iter(loader))
        until(told, "the trainer is told that lines are missing")
    assert said.count("line of the flood") < 200
    assert 'line of the flood 999"' in shared_daemon.paths.log.read_text().replace("\\u", "")


def test_output_without_a_newline_and_on_both_streams_arrives(capfd, shared_daemon):
    with PrefetchLoader(Made(_unfinished, 4), batch_size=4, buffer=6) as loader:
        next(iter(loader))
        until(
            lambda: "to stderr" in shared_daemon.paths.log.read_text(),
            "what went to stderr is in the log",
        )


WARNS = """
import warnings
from torch.utils.data import Dataset

warnings.warn("this package is deprecated", stacklevel=2)

class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            warnings.warn("and this row is odd", stacklevel=2)
        return index
"""
TRAINER = """
import warns_when_imported
from prefetchd_client import PrefetchLoader
for seed in range(2):
    with PrefetchLoader(warns_when_imported.Rows(), batch_size=4, seed=seed, num_workers=1) as loader:
        assert len(list(loader)) == 3
        assert len(list(loader)) == 3
"""


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_what_modules_warn_of_when_they_are_imported_comes_once(shared_daemon, tmp_path, start):
    """Found as a deprecation that each zygote told again."""
    (tmp_path / "warns_when_imported.py").write_text(WARNS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = shared_daemon.environment | {"PYTHONPATH": path, "PREFETCHD_START": start, "PYTHONWARNINGS": "always"}
    done = subprocess.run([sys.executable, "-c", TRAINER], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("this package is deprecated") == 1
    assert "this row is odd" in done.stderr, "what the dataset warns of is told"


def _drained(loader):
    """Lets the client read what has come; the epochs go by."""
    list(loader)
    return True


class _Prints:
    def __init__(self, line):
        self.line = line

    def __call__(self, index):
        for _ in range(20):
            print(self.line)
        return index


def _binary(index):
    os.write(1, (b"\xff" * 1990 + b"\n") * 20)
    return index


def _flood(index):
    if index == 0:
        for number in range(1000):
            print("line of the flood", number)
    return index


def _unfinished(index):
    os.write(1, b"no newline ")
    print("to stderr", index, file=sys.stderr)
    return index
