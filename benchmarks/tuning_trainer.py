"""One trainer of benchmarks.tuning, in a process of its own: what it gets of one work by one loader, as a line of JSON.

python -m benchmarks.tuning_trainer WORK --workers N [--warm S] [--seconds S]     DataLoader with N workers
python -m benchmarks.tuning_trainer WORK             [--warm S] [--seconds S]     prefetchd, which is told no number
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.pictures import cached_pictures
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.harness import endless, own_daemon
from prefetchd.status.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths

BATCH = 16
SAMPLES = 1 << 20
PICTURES = 2000
GIB = 1 << 30
PAGE = 4096


class Costly(Dataset[torch.Tensor]):
    """Gives samples that take so many seconds of a CPU, and of waiting; one of `one_in` takes `long_s`. A process that
    has given one keeps `worker_bytes`."""

    def __init__(
        self,
        cpu_s: float = 0.0,
        waits_s: float = 0.0,
        one_in: int = 0,
        long_s: float = 0.0,
        worker_bytes: int = 0,
    ) -> None:
        self.cpu_s, self.waits_s, self.one_in, self.long_s = cpu_s, waits_s, one_in, long_s
        self.worker_bytes = worker_bytes
        self._kept = bytearray()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if len(self._kept) < self.worker_bytes:
            self._kept = bytearray(self.worker_bytes)
            self._kept[::PAGE] = b"x" * (self.worker_bytes // PAGE)
        until_s = time.thread_time() + self.cpu_s
        is_long = self.one_in and random.Random(index).randrange(self.one_in) == 0
        time.sleep(self.long_s if is_long else self.waits_s)
        while time.thread_time() < until_s:
            pass
        return torch.tensor(index)


@dataclasses.dataclass(frozen=True)
class Work:
    """Datasets, each with a loader and an iterating thread; and the trainer's `rhythm`: seconds in which it takes what
    comes, and in which it takes nothing. In a memory cgroup of `group_bytes`, if that is not 0."""

    datasets: tuple[Callable[[], Any], ...]
    batch_size: int = BATCH
    rhythm: tuple[float, float] | None = None
    group_bytes: int = 0


def _pictures() -> ImageFolder:
    directory = cached_pictures(PICTURES, 2, lambda directory, so_far: None)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return ImageFolder(str(directory), transforms.Compose(steps))


WORKS = {
    "jpeg": Work((_pictures,), 64),
    "sleep": Work((lambda: Costly(waits_s=0.02),)),
    "mixed": Work((lambda: Costly(cpu_s=0.005, waits_s=0.03),)),
    "tail": Work((lambda: Costly(waits_s=0.001, one_in=100, long_s=1.0),)),
    "bursts": Work((lambda: Costly(waits_s=0.02),), rhythm=(3.0, 3.0)),
    "two": Work((lambda: Costly(cpu_s=0.005), lambda: Costly(waits_s=0.02))),
    "large": Work((lambda: Costly(waits_s=0.02, worker_bytes=GIB),), group_bytes=4 * GIB),
}


class Trainer:
    """Takes batches of one loader, in the work's rhythm, and counts them."""

    def __init__(self, batches: Iterator[Any], work: Work) -> None:
        self._batches = batches
        self._rhythm = work.rhythm
        self.taken = 0

    def take(self, until_s: float) -> None:
        pauses_at_s = time.perf_counter() + self._rhythm[0] if self._rhythm is not None else float("inf")
        while (now_s := time.perf_counter()) < until_s:
            if now_s >= pauses_at_s and self._rhythm is not None:
                time.sleep(self._rhythm[1])
                pauses_at_s = time.perf_counter() + self._rhythm[0]
            next(self._batches)
            self.taken += 1


def rates(work: Work, loaders: list[DataLoader[Any]], warm_s: float, seconds: float) -> list[float]:
    """Returns the samples a second that each loader's trainer gets: after its first batch and `warm_s` more."""
    # Forks of DataLoader before there are threads.
    iterators = [endless(loader) for loader in loaders]
    for batches in iterators:
        next(batches)
    trainers = [Trainer(batches, work) for batches in iterators]
    found = []
    for last_s in (warm_s, seconds):
        began_s = time.perf_counter()
        before = [trainer.taken for trainer in trainers]
        threads = [threading.Thread(target=trainer.take, args=(began_s + last_s,)) for trainer in trainers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        over_s = time.perf_counter() - began_s
        found = [(each.taken - taken) * work.batch_size / over_s for each, taken in zip(trainers, before)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--warm", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    work = WORKS[arguments.work]
    datasets = [dataset() for dataset in work.datasets]
    common: dict[str, Any] = {"batch_size": work.batch_size, "shuffle": True, "drop_last": True}
    # DataLoader's own, on a machine of few CPUs.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    if arguments.workers:
        common |= {"num_workers": arguments.workers, "persistent_workers": True}
        loaders = [DataLoader(dataset, **common) for dataset in datasets]
        print(json.dumps({"rates": rates(work, loaders, arguments.warm, arguments.seconds), "streams": []}))
        return
    with own_daemon(autotune=True) as directory:
        theirs: list[Any] = [PrefetchLoader(dataset, **common) for dataset in datasets]
        found = rates(work, theirs, arguments.warm, arguments.seconds)
        snapshot = read_report(runtime_paths(f"{directory}/d.sock")).snapshot
        assert snapshot is not None
        told = [{"workers": each["workers_limit"], "tuning": each["tuning"]} for each in snapshot["streams"]]
        print(json.dumps({"rates": found, "streams": told}), flush=True)
        for loader in theirs:
            loader.close()


if __name__ == "__main__":
    main()
