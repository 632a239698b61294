"""No process can be forked: it is told on the trainer's stderr, and the batches come all the same."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from prefetchd.wire.errors import StreamFailedError, UnpicklableError
from tests.scenario.scarcity import few_descriptors_left, no_fork_of_this_process
from tests.scenario.waiting import stopped, stream_when, until

ROOT = Path(__file__).parents[2]
BATCHES = [list(range(at, at + 4)) for at in range(0, 24, 4)]


class Changeable(Dataset):
    def __init__(self) -> None:
        self.value = 0
        # Too large to be written for nothing.
        self.table = torch.zeros(65 << 20, dtype=torch.uint8)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index + self.value


def without_its_zygote(daemon, stream: str) -> None:
    """The trainer's fork is dead, and nobody else has its program: it is large, or was never written."""
    stream_when(daemon, stream, lambda stream: stream["zygote"] == "fork" and not stream["program_kept"])

    def stop() -> list[psutil.Process]:
        found = [each for each in daemon.processes() if each.name() == "prefetchd-zyg"]
        for zygote in found:
            zygote.suspend()
        return found

    # One that is stopped forks no spare: that one would be the next to be killed, until too many are.
    stopped, zygotes = [], stop()
    while zygotes != stopped:
        stopped, zygotes = zygotes, stop()
    for zygote in zygotes:
        zygote.kill()
    stream_when(daemon, stream, lambda stream: stream["zygote"] == "none", "its zygote is dead")


@pytest.mark.parametrize("runs", [True, False], ids=["a daemon runs", "no daemon runs"])
def test_not_from_the_trainer(daemon, capfd, runs):
    if runs:
        daemon.start()
    with no_fork_of_this_process(), PrefetchLoader(Changeable(), 4, buffer=6, stream="executed") as loader:
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == BATCHES
        stream_when(daemon, "executed", lambda stream: stream["zygote"] == "executed", "its zygote is executed")
    said = capfd.readouterr().err
    assert said.count("no process can be forked (Cannot allocate memory)") == 1
    assert "the workers of stream 'executed' are started from an interpreter of their own" in said


REFUSED = """
import os
from prefetchd_client import PrefetchLoader
from tests.scenario.scarcity import refuse_forks
refuse_forks()
try:
    os.fork()
except BlockingIOError as error:
    print(error.strerror)
with PrefetchLoader(list(range(24)), 4, num_workers=1, stream="refused") as loader:
    for _ in range(2):
        print([batch.tolist() for batch in loader], flush=True)
    input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_not_from_a_trainer_to_whom_the_kernel_refuses_it(daemon):
    """RLIMIT_NPROC, as `ulimit -u` sets it."""
    daemon.start()
    environment = daemon.environment | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", REFUSED], env=environment, text=True, **pipes) as trainer:
        said = [trainer.stdout.readline().strip() for _ in range(3)]
        assert said == ["Resource temporarily unavailable", *[str(BATCHES)] * 2]
        # Later it may end: the ring is full.
        stream_when(daemon, "refused", lambda stream: stream["zygote"] == "executed", "its zygote is executed")
        _, errors = trainer.communicate("\n")
    assert trainer.returncode == 0
    assert errors.count("no process can be forked (Resource temporarily unavailable)") == 1


def test_not_from_the_trainer_whose_dataset_only_a_fork_carries(daemon):
    dataset = Changeable()
    dataset.lock = threading.Lock()
    with no_fork_of_this_process(), pytest.raises(UnpicklableError, match=r"dataset\.lock"):
        PrefetchLoader(dataset, 4)


def test_not_from_the_trainer_any_more(daemon, capfd):
    """Its fork dies, and the dataset is written: but only if it is still what the batches are of."""
    daemon.start()
    dataset = Changeable()
    with PrefetchLoader(dataset, 1, buffer=6, stream="again") as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        assert loader.fingerprint
        without_its_zygote(daemon, "again")
        with no_fork_of_this_process():
            assert [int(each) for each in iterator] == list(range(1, 24))
    assert "no process can be forked" in capfd.readouterr().err


def test_not_from_a_trainer_whose_dataset_has_changed(daemon):
    daemon.start()
    dataset = Changeable()
    with PrefetchLoader(dataset, 1, buffer=6, num_workers=2, stream="changed") as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        assert loader.fingerprint
        without_its_zygote(daemon, "changed")
        dataset.value = 100
        with no_fork_of_this_process():
            with pytest.raises(StreamFailedError, match="dataset of stream 'changed' has been changed"):
                list(iterator)
            with pytest.raises(StreamFailedError):
                next(iterator)


def test_not_from_its_zygote(daemon, capfd):
    """Found as a zygote that died again and again."""
    daemon.start()
    dataset = Changeable()
    dataset.lock = threading.Lock()
    with PrefetchLoader(dataset, 1, buffer=6, num_workers=2, stream="scarce") as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        zygote = psutil.Process(loader._sessions.current.fork.pid)
        stream_when(daemon, "scarce", lambda stream: stream["carried_by_fork"] and stream["ring"]["ready"] >= 5)
        with contextlib.ExitStack() as scarce:
            with stopped(daemon):
                workers = [each for each in zygote.children() if each.name().startswith("prefetchd-w")]
                for worker in workers:
                    worker.kill()
                until(lambda: not any(worker.is_running() for worker in workers), "they are reaped")
                scarce.enter_context(few_descriptors_left(zygote.pid, 1))
            assert [int(next(iterator)) for _ in range(5)] == list(range(1, 6)), "they were ready"
            until(lambda: '"no worker can be started"' in daemon.paths.log.read_text(), "it is tried")
        assert [int(each) for each in iterator] == list(range(6, 24))
        assert zygote.is_running()
        stream = stream_when(daemon, "scarce")
        assert stream["zygote_deaths"] == 0
    said = capfd.readouterr().err
    assert said.count("no process can be started for stream 'scarce': Too many open files: ") == 1
