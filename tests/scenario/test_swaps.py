"""docs/coming-from-dataloader.md: each way of the swap, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-dataloader.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)

# What follows the swap in a script: it knows of no prefetchd.
REST = """
import torch.utils.data
from torch.utils.data import TensorDataset

made = globals().get("loader") or globals().get("DataLoader", torch.utils.data.DataLoader)
if isinstance(made, type):
    made = made(TensorDataset(torch.arange(100)), batch_size=10, num_workers=1)
print(type(made).__name__, [batch[0].tolist() for batch in made] == torch.arange(100).reshape(10, 10).tolist())
"""


@pytest.mark.parametrize("block", BLOCKS, ids=["import", "wrap", "monkeypatch"])
def test_the_rest_of_the_script_has_our_batches(shared_daemon, block):
    done = subprocess.run(
        [sys.executable, "-c", block + REST], env=shared_daemon.environment, capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "PrefetchLoader True\n", done.stderr[-2000:]


LIBRARY = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Counting(DataLoader):
    def __init__(self, rows, *arguments, **options):
        self.begun = 0
        super().__init__(TensorDataset(torch.arange(rows)), *arguments, **options)
        self.rows = rows

    def __iter__(self):
        self.begun += 1
        for (batch,) in super().__iter__():
            yield self.rows + batch

    def __len__(self):
        return 100 + super().__len__()

class Plain(DataLoader[torch.Tensor]):
    def __init__(self, rows, **options):
        DataLoader.__init__(self, dataset=TensorDataset(torch.arange(rows)), collate_fn=self.joined, **options)

    def joined(self, samples):
        return torch.cat([10 * self.batch_size + row.reshape(1) for row, in samples])

class Collating(Counting):
    def __init__(self, rows, batch_size):
        super().__init__(rows, batch_size, collate_fn=lambda samples: [-samples[0][0]])

class Keeping:
    def __init__(self, loader):
        assert isinstance(loader, DataLoader)
        self.iterator = iter(loader)

def used():
    for loader in (Counting(20, 8), Plain(12, batch_size=4, num_workers=1), Collating(6, 3), DataLoader(range(3))):
        yield len(loader), [[batch.tolist() for batch in loader] for epoch in range(2)], getattr(loader, "begun", 0)
        yield loader.batch_size, loader.num_workers, next(Keeping(loader).iterator).tolist()
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_subclasses_that_a_library_defines_after_the_swap(shared_daemon, tmp_path):
    (tmp_path / "library.py").write_text(LIBRARY)
    said = []
    for swap in ("", BLOCKS[-1]):
        script = swap + "import library\nfor each in library.used():\n    print(each)\n"
        script += "print([each.__name__ for each in library.Collating.__mro__ if 'Loader' in each.__name__])\n"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env=shared_daemon.environment | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        *lines, bases = done.stdout.splitlines()
        said.append(lines)
        assert ("PrefetchLoader" in bases) == bool(swap)
    assert said[0] == said[1]
    assert len(said[0]) == 8
