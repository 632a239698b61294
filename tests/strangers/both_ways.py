"""A program of `programs/` is run twice as a script: as it stands, and with the lines of docs/libraries.md at its top.

The program writes its results as JSON, in `results.json` of its working directory: a value for each thing that it does.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Daemon

PROGRAMS = Path(__file__).parent / "programs"
PAGE = Path(__file__).parents[2] / "docs" / "libraries.md"
SWAP, FOR_SKORCH = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)

COUNT = """
import atexit, collections, json, torch.utils.data, warnings
warnings.simplefilter("ignore")
_begun = collections.Counter()
def _counted(self, loader, _init=torch.utils.data.dataloader._BaseDataLoaderIter.__init__):
    _begun[type(loader).__name__] += 1
    _init(self, loader)
torch.utils.data.dataloader._BaseDataLoaderIter.__init__ = _counted
atexit.register(lambda: open("begun.json", "w").write(json.dumps(_begun)))
"""
"""Counts the iterators of torch's own that the program has begun, by the class of their loader."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "agg",
    "OMP_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE",
}
"""Nobody is asked on the network, nothing is shown, and threads of small models do not wait for one another. Sums do
not depend on where in memory a tensor lies, as they do on some CPUs: DataLoader's own runs differed there."""


@dataclass(frozen=True)
class Run:
    """What one run of a program came to."""

    results: dict[str, Any]
    begun: dict[str, int]


@dataclass(frozen=True)
class BothRuns:
    """What a program came to with DataLoader, and what with PrefetchLoader."""

    theirs: Run
    ours: Run

    def assert_same(self, name: str) -> None:
        """Fails unless both runs found the same there, and something."""
        assert self.theirs.results[name], f"{name} found nothing"
        assert self.ours.results[name] == self.theirs.results[name]

    def assert_no_iterator_of_torch(self) -> None:
        """Fails unless all batches of the one run came from torch's own iterators, and none of the other's."""
        assert self.theirs.begun
        assert self.ours.begun == {}


def run_both_ways(daemon: Daemon, name: str, package: str, directory: Path, after: str = "") -> BothRuns:
    """Runs `programs/<name>.py` in two directories of its own; in the one with PrefetchLoader also what comes `after`
    it. Skips the test when the package is missing, fails it when a run fails."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = COUNT + (PROGRAMS / f"{name}.py").read_text("utf-8")
    theirs = _run(daemon, program, directory / "dataloader")
    return BothRuns(theirs, _run(daemon, SWAP + program + after, directory / "prefetchd"))


def _run(daemon: Daemon, program: str, directory: Path) -> Run:
    directory.mkdir()
    script = directory / "train.py"
    script.write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=directory,
        env=daemon.environment | ENVIRONMENT | {"HF_HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    results, begun = (json.loads((directory / file).read_text()) for file in ("results.json", "begun.json"))
    return Run(results, begun)
