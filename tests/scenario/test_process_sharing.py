"""What multiprocessing shares between processes reaches workers that are no forks of the trainer, as it reaches
DataLoader's when they are spawned."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from prefetchd.wire.errors import UnpicklableError

LENGTH = 24

pytestmark = pytest.mark.usefixtures("shared_daemon")


class Sharing(Dataset):
    """Item i is i, and each is counted; of the first one the trainer is told."""

    def __init__(self, context) -> None:
        self.count = context.Value("i", 0)
        self.numbers = context.Array("d", [0.5] * LENGTH)
        self.lock = context.Lock()
        self.begun = context.Event()
        self.told = context.SimpleQueue()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        with self.count.get_lock():
            self.count.value += 1
        with self.lock:
            self.numbers[index] += 1
        if index == 0:
            self.begun.set()
            self.told.put("begun")
        return index


@pytest.fixture(params=["exec", "spawn"])
def start(request, monkeypatch) -> dict:
    """The arguments of loaders whose workers begin in this way."""
    if request.param == "exec":
        monkeypatch.setenv("PREFETCHD_START", "exec")
        return {}
    return {"multiprocessing_context": "spawn"}


@pytest.fixture(autouse=True)
def untracked() -> Iterator[None]:
    """multiprocessing's own process, which would live as long as this one."""
    yield
    gc.collect()
    resource_tracker._resource_tracker._stop()


def in_lists(loader) -> list:
    return [batch.tolist() for batch in loader]


def test_workers_share_what_the_trainer_shares(start):
    ours = start | {"fresh": True}
    for base, arguments in ((DataLoader, {"multiprocessing_context": "spawn"}), (PrefetchLoader, ours)):
        dataset = Sharing(multiprocessing.get_context("spawn"))
        loader = base(dataset, batch_size=4, num_workers=2, **arguments)
        assert in_lists(loader) == [list(range(at, at + 4)) for at in range(0, LENGTH, 4)]
        assert dataset.begun.is_set()
        assert dataset.told.get() == "begun"
        assert dataset.count.value >= LENGTH
        assert all(number >= 1.5 for number in dataset.numbers)


def test_what_was_made_for_forks_is_refused(start):
    """As DataLoader refuses it: nothing can be found by its name any more."""
    with pytest.raises(UnpicklableError, match=r"^dataset\.count"):
        PrefetchLoader(Sharing(multiprocessing.get_context("fork")), batch_size=4, num_workers=2, fresh=True, **start)


PROGRAM = """
import multiprocessing
from prefetchd_client import PrefetchLoader
from tests.scenario.test_process_sharing import Sharing

def train(dataset):
    # A process that was spawned spawns others, unless it is told otherwise.
    assert multiprocessing.get_start_method() == "spawn"
    print([batch.tolist() for batch in PrefetchLoader(dataset, batch_size=12, num_workers=2)])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    dataset = Sharing(context)
    process = context.Process(target=train, args=(dataset,))
    process.start()
    process.join()
    assert process.exitcode == 0
"""


def test_a_spawned_trainer_hands_on_what_it_was_given(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM, "utf-8")
    said = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    assert said.stdout == f"{[list(range(12)), list(range(12, 24))]}\n"
