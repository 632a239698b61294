"""A loader's workers are forks of its trainer: they carry what DataLoader's carry, and go on as others do."""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import multiprocessing
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
import weakref
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import threadpoolctl
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from prefetchd.wire.errors import StreamFailedError
from tests.scenario.forked import forked, told_by
from tests.scenario.waiting import is_gone, ring_when, stream_when, until

LENGTH = 24
ROOT = Path(__file__).parents[2]


class Held(Dataset):
    """Item i is what read(held, i) gives."""

    def __init__(self, held, read) -> None:
        self.held = held
        self.read = read

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int):
        return self.read(self.held, index)


def _file(directory: Path):
    path = directory / "file"
    path.write_bytes(bytes(range(LENGTH)))
    return path.open("rb"), lambda file, index: os.pread(file.fileno(), 1, index)[0]


def _descriptor(directory: Path):
    file, _ = _file(directory)
    descriptor = os.dup(file.fileno())
    file.close()
    return descriptor, lambda number, index: os.pread(number, 1, index)[0]


def _mapping(directory: Path):
    file, _ = _file(directory)
    with file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), lambda memory, index: memory[index]


def _archive(directory: Path):
    with zipfile.ZipFile(directory / "zip", "w") as archive:
        for index in range(LENGTH):
            archive.writestr(str(index), bytes([index]))
    # Each worker has its own place in it only if nobody else reads while it does: as with DataLoader.
    held = zipfile.ZipFile(io.BytesIO((directory / "zip").read_bytes()))
    return held, lambda archive, index: archive.read(str(index))[0]


def _database(directory: Path):
    connection = sqlite3.connect(directory / "db")
    connection.execute("create table rows (number integer, value integer)")
    connection.executemany("insert into rows values (?, ?)", [(each, each * each) for each in range(LENGTH)])
    connection.commit()

    def read(connection, index):
        return connection.execute("select value from rows where number = ?", (index,)).fetchone()[0]

    return connection, read


def _lock(directory: Path):
    def read(lock, index):
        with lock:
            return index

    return threading.RLock(), read


def _closure(directory: Path):
    table = {each: each * 3 for each in range(LENGTH)}
    return lambda index: table[index], lambda function, index: function(index)


def _generator(directory: Path):
    return (each for each in range(1)), lambda generator, index: index + generator.gi_running


def _weak_references(directory: Path):
    known = weakref.WeakValueDictionary()
    kept = [torch.full((2,), each) for each in range(LENGTH)]
    for index, tensor in enumerate(kept):
        known[index] = tensor
    return (known, kept), lambda held, index: held[0][index]


def _pool(directory: Path):
    """Made before the fork and used in it, it hangs with DataLoader, too; one whose threads are yet to begin works."""
    return ThreadPoolExecutor(2), lambda pool, index: pool.submit(lambda: index * 2).result()


def _pointer(directory: Path):
    numbers = (ctypes.c_int * LENGTH)(*range(LENGTH))
    return (ctypes.pointer(numbers), numbers), lambda held, index: held[0].contents[index]


def _shared_value(directory: Path):
    return multiprocessing.Value("i", 7), lambda value, index: index + value.value


def _view(directory: Path):
    return memoryview(bytes(range(LENGTH))), lambda view, index: view[index]


def _module(directory: Path):
    return random, lambda module, index: index + len(module.__name__)


def _socket(directory: Path):
    ours, theirs = socket.socketpair()
    return (ours, theirs), lambda pair, index: index + (pair[0].family == socket.AF_UNIX)


HELD = [
    _file,
    _descriptor,
    _mapping,
    _archive,
    _database,
    _lock,
    _closure,
    _generator,
    _weak_references,
    _pool,
    _pointer,
    _shared_value,
    _view,
    _module,
    _socket,
]


def _batches(loader) -> list:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("make", HELD, ids=lambda make: make.__name__.strip("_"))
def test_whatever_a_fork_carries_is_carried(shared_daemon, tmp_path, make):
    held, read = make(tmp_path)
    dataset = Held(held, read)
    expected = _batches(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=6) as loader:
        assert _batches(loader) == expected
        assert _batches(loader) == expected
    for each in held if isinstance(held, tuple) else (held,):
        if hasattr(each, "close"):
            each.close()
        if isinstance(each, int) and make is _descriptor:
            os.close(each)


def test_what_a_manager_has_is_carried(shared_daemon):
    with multiprocessing.Manager() as manager:
        shared = manager.dict({each: each * 5 for each in range(LENGTH)})
        with PrefetchLoader(Held(shared, lambda known, index: known[index]), batch_size=4, buffer=6) as loader:
            assert _batches(loader) == [[5 * each for each in range(at, at + 4)] for at in range(0, LENGTH, 4)]


KILLED = """
import os, sys, threading
from prefetchd_client import PrefetchLoader
from tests.scenario.datasets import Numbers
data = Numbers(400)
data.lock = threading.Lock()
loader = PrefetchLoader(data, batch_size=4, buffer=16, stream="orphan")
next(iter(loader))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_fork_outlives_its_trainer_until_the_ring_is_full(daemon):
    """All that tells of the trainer's death comes at once. What is ready stays when the fork has gone."""
    daemon.start()
    environment = daemon.environment | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"ready\n"
        zygotes = [each for each in daemon.processes() if each.name() == "prefetchd-zyg"]
        for zygote in zygotes:
            zygote.suspend()
        trainer.kill()
        trainer.wait()
        for zygote in zygotes:
            zygote.resume()
        stream_when(daemon, "orphan", lambda stream: stream["lingering"] and stream["ring"]["ready"] >= 14)
        until(lambda: all(is_gone(zygote.pid) for zygote in zygotes), "a dead trainer's memory is given back")
        ring_when(daemon, "orphan", lambda ring: ring["ready"] >= 14)


def test_what_cannot_be_pickled_goes_on_when_its_zygote_dies(daemon):
    daemon.start()
    dataset = Held(threading.Lock(), lambda lock, index: index)
    with PrefetchLoader(dataset, batch_size=1, buffer=6) as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        zygotes = {each.pid for each in until(lambda: _pair_of(daemon), "there is a spare")}
        loads = [psutil.Process(pid) for pid in zygotes]
        serving = max(loads, key=lambda each: len(each.children()))
        os.kill(serving.pid, signal.SIGKILL)
        assert [int(each) for each in iterator] == list(range(1, LENGTH))


def test_status_says_what_is_carried_by_fork_and_gives_no_advice(daemon):
    """A lock may be made whenever its owner likes: forks carry it."""
    daemon.start()
    dataset = Held(threading.Lock(), lambda lock, index: index)
    with PrefetchLoader(dataset, batch_size=1, buffer=6, stream="carried") as loader:
        assert int(next(iter(loader))) == 0
        stream = stream_when(daemon, "carried", lambda stream: stream["carried_by_fork"], "why is known")
        assert stream["carried_by_fork"] == "dataset.held: TypeError: cannot pickle '_thread.lock' object"
        told = " ".join(daemon.command("status").stdout.split())
    assert (
        "carried by fork: it cannot be made again after its trainer; dataset.held: TypeError: cannot pickle "
        "'_thread.lock' object"
    ) in told
    assert "lazily" not in told


@pytest.mark.parametrize("changes", [True, False])
def test_what_cannot_be_pickled_is_forked_again_if_it_is_still_the_same(daemon, changes):
    """Found as a next() that never returned: workers were asked for without end of a zygote that had been dropped."""
    daemon.start()
    dataset = Held(threading.Lock(), lambda lock, index: index)
    with PrefetchLoader(dataset, batch_size=1, num_workers=2, buffer=6, stream="forked again") as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        pair = until(lambda: _pair_of(daemon), "there is a spare")
        for each in pair:
            each.suspend()
        for each in pair:
            each.kill()
        until(lambda: stream_when(daemon, "forked again")["zygote"] == "none", "both are gone")
        if not changes:
            assert [int(each) for each in iterator] == list(range(1, LENGTH))
            return
        dataset.of_another_kind = True
        with pytest.raises(StreamFailedError, match="dataset of stream 'forked again' has been changed"):
            list(iterator)


def _pair_of(daemon) -> list[psutil.Process]:
    found = [each for each in daemon.processes() if each.name() == "prefetchd-zyg"]
    return found if len(found) == 2 else []


class Guarded(IterableDataset):
    """Yields its rows, a worker's share of them, from an iterator of its own that cannot be copied."""

    def __init__(self) -> None:
        self.rows = (each for each in range(LENGTH))
        self.lock = threading.Lock()
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        info = get_worker_info()
        for row in self.rows:
            with self.lock:
                if row % info.num_workers == info.id:
                    yield row + 1000 * self.begun


def test_an_iterable_dataset_that_cannot_be_copied_begins_anew_in_another_worker(shared_daemon):
    """Each epoch of each worker is the dataset's as the trainer had it, as with DataLoader."""
    dataset = Guarded()
    expected = _batches(DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork"))
    assert [each for batch in expected for each in batch if each >= 2000] == []
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=6) as loader:
        for _ in range(3):
            assert _batches(loader) == expected


# --- what workers take, and what they leave alone ---


def _threads(_, index: int) -> tuple[int, int]:
    pools = [each["num_threads"] for each in threadpoolctl.threadpool_info()]
    return torch.get_num_threads(), max(pools, default=1)


def test_its_workers_compute_with_one_thread_each(shared_daemon):
    """Of torch's and of the numeric libraries', however many the trainer has."""
    former = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpoolctl.threadpool_limits(2):
            assert _threads(None, 0) == (2, 2)
            with PrefetchLoader(Held(None, _threads), batch_size=4, buffer=6) as loader:
                assert {tuple(map(int, each)) for batch in loader for each in zip(*batch)} == {(1, 1)}
    finally:
        torch.set_num_threads(former)


def test_cuda_is_not_touched_by_a_loader_of_what_lies_in_memory(shared_daemon, tmp_path, monkeypatch):
    """Neither here nor in a worker: it takes seconds and memory, and who has begun with it cannot be forked."""
    touched = tmp_path / "touched"

    def touch(*_) -> None:
        touched.write_text("".join(traceback.format_stack()))
        raise AssertionError("CUDA is touched")

    for module, name in ((torch.cuda, "_lazy_init"), (torch.cuda, "is_available"), (torch.cuda, "device_count")):
        monkeypatch.setattr(module, name, touch)
    dataset = Held(torch.arange(LENGTH), lambda numbers, index: numbers[index] + torch.rand(()))
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=6) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            assert torch.equal(torch.cat(list(loader)).floor(), torch.arange(LENGTH).float())
    assert not touched.exists(), touched.read_text()


def _forks() -> set[int]:
    """Those of this process."""
    return {each.pid for each in psutil.Process().children() if each.name() == "prefetchd-zyg"}


def _forks_known_to(pid: int, forks: set[int]) -> set[int]:
    """Those of the forks of which the process has a pidfd."""
    known = set()
    for descriptor in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            known |= {int(each) for each in re.findall(r"^Pid:\s*(-?\d+)$", descriptor.read_text(), re.MULTILINE)}
    return known & forks


def test_no_child_of_the_trainer_has_pidfds_of_its_forks(shared_daemon):
    """They would be open in a process that does not know of them: of the next loader, or of the user."""
    before = _forks()
    loaders = [PrefetchLoader(list(range(LENGTH + each)), batch_size=4, buffer=6) for each in range(2)]
    with contextlib.ExitStack() as opened:
        for loader in loaders:
            opened.enter_context(loader)
            assert len(list(loader)) >= LENGTH // 4
        forks = _forks() - before
        assert len(forks) == 2
        assert _forks_known_to(os.getpid(), forks) == forks
        known = {pid: _forks_known_to(pid, forks) for pid in forks}
        assert set().union(*known.values()) == set(), known
        assert told_by(forked(lambda: _forks_known_to(os.getpid(), forks))) == "set()"
