"""Datasets of packages that start threads when they are imported, or hold open files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

HEAD = """
import sys, threading, torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, held, read):
        self.held, self.read = held, read
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return self.read(self.held, index)

def batches(loader):
    return [batch.tolist() if hasattr(batch, "tolist") else {key: value.tolist() for key, value in batch.items()}
            for batch in loader]
"""

SAME = """
expected = batches(DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"))
with PrefetchLoader(data, batch_size=4, num_workers=2, buffer=6) as loader:
    assert batches(loader) == expected
    assert batches(loader) == expected
print("same")
"""

HOLD = {
    "pyarrow": """
import pyarrow
table = pyarrow.table({"x": list(range(24))})
data = Rows(table, lambda table, index: table.column("x")[index].as_py())
""",
    "pandas": """
import pandas
frame = pandas.DataFrame({"x": range(24), "y": [f"text {each}" for each in range(24)]})
data = Rows(frame, lambda frame, index: int(frame.iloc[index].x) + len(frame.iloc[index].y))
""",
    "datasets": """
import datasets
columns = {"x": list(range(24)), "y": [[each, -each] for each in range(24)]}
data = datasets.Dataset.from_dict(columns).with_format("torch")
data[0]
""",
    "h5py": """
import h5py, numpy
with h5py.File(sys.argv[1] + "/rows.h5", "w") as file:
    file["x"] = numpy.arange(24) * 3
data = Rows(h5py.File(sys.argv[1] + "/rows.h5", "r"), lambda file, index: int(file["x"][index]))
data[0]
""",
    "lmdb": """
import lmdb
with lmdb.open(sys.argv[1] + "/rows.lmdb") as environment, environment.begin(write=True) as transaction:
    for each in range(24):
        transaction.put(str(each).encode(), bytes([each]))
environment = lmdb.open(sys.argv[1] + "/rows.lmdb", readonly=True, lock=False)
data = Rows(environment.begin(), lambda transaction, index: transaction.get(str(index).encode())[0])
data[0]
""",
}


def run(daemon, code, directory, start):
    """What it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code, str(directory)],
        env=daemon.environment | {"PYTHONWARNINGS": "ignore", "PREFETCHD_START": start},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout == "same\n", done.stderr[-3000:]
    return done.stderr


FORKED = [(package, "fork") for package in HOLD]
EXECUTED = [(package, "exec") for package in ("pyarrow", "pandas", "datasets")]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "start"), FORKED + EXECUTED)
def test_its_datasets_give_the_same_and_workers_are_forked(shared_daemon, tmp_path, package, start):
    """From the trainer, or from what was executed: of either a worker is a fork, and no interpreter of its own."""
    _need(package)
    assert "interpreter of its own" not in run(shared_daemon, HOLD[package] + SAME, tmp_path, start)


def _need(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
