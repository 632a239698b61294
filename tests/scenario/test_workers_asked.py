"""As many workers as a loader asks for, unless somebody has bound them; and then each trainer has its part of them."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from tests.scenario.datasets import Numbers
from tests.scenario.waiting import stream_when

MANY = 12


class Counted(Dataset):
    """Slow items; the file `marks` has a + for each that begins and a - for each that ends."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def __len__(self) -> int:
        return 4 * MANY

    def _mark(self, sign: bytes) -> None:
        fd = os.open(self.marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, sign)
        os.close(fd)

    def __getitem__(self, index: int) -> int:
        self._mark(b"+")
        time.sleep(0.5)
        self._mark(b"-")
        return index

    def most_at_once(self) -> int:
        return max(itertools.accumulate(1 if sign == "+" else -1 for sign in self.marks.read_text()))


class Slow(Dataset):
    """Samples that are waited for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


def test_there_are_as_many_as_were_asked_for_however_few_cpus_there_are(daemon, tmp_path):
    daemon.start()
    with warnings.catch_warnings():
        # DataLoader's own, of more workers than CPUs.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        dataset = Counted(tmp_path / "marks")
        loader = PrefetchLoader(dataset, batch_size=1, num_workers=MANY, buffer=2 * MANY, stream="many")
    with loader:
        assert [int(index) for index in loader] == list(range(4 * MANY))
        assert dataset.most_at_once() == MANY
        stream = stream_when(daemon, "many")
        assert (stream["workers_limit"], stream["workers_asked"]) == (MANY, MANY)


def test_whoever_has_bound_them_is_named(daemon):
    daemon.start("--workers", "2")
    with pytest.warns(UserWarning, match=r"num_workers=8, but the daemon allows 2 busy workers: `\[daemon\] workers`"):
        loader = PrefetchLoader(Numbers(40), batch_size=4, num_workers=8, stream="bound")
    with loader, warnings.catch_warnings():
        # Once.
        warnings.simplefilter("error")
        assert len(list(loader)) == 10
        stream = stream_when(daemon, "bound", lambda stream: stream["workers"])
        assert (stream["workers_limit"], stream["workers_asked"]) == (2, 8)


@pytest.mark.parametrize("bound", [1, 2])
def test_a_cheap_stream_does_not_wait_behind_a_slow_one(daemon, bound):
    """Found as 0.1 batches/s beside a trainer whose samples sleep."""
    daemon.start("--workers", str(bound))
    with PrefetchLoader(Slow(0.02), batch_size=16, stream="slow", buffer=64) as slow:
        next(iter(slow))
        before = stream_when(daemon, "slow")["produced_batches"]
        with PrefetchLoader(Numbers(4000), batch_size=16, stream="cheap", buffer=8) as cheap:
            assert sum(1 for _ in itertools.islice(cheap, 100)) == 100
        made = stream_when(daemon, "slow")["produced_batches"] - before
    # A batch of the slow one takes 0.3 worker seconds, a hundred of the other's next to nothing.
    assert made <= 16
