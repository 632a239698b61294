"""Is the number of workers right that nobody has said? After 15 s beside DataLoader with each of 1, 2, 4, 8, 16, 32.

python -m benchmarks.tuning [--works NAME ...] [--seconds S]

Each loader is given a dataset and a batch size. prefetchd runs for 15 s first, DataLoader for 3; then what each gives
its trainer is measured, for 10 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from prefetchd_demo.pictures import cached_pictures
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.harness import endless, own_daemon
from prefetchd.cli.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths

SWEEP = (1, 2, 4, 8, 16, 32)
BATCH = 16
SAMPLES = 1 << 20
PICTURES = 2000
TUNED_AFTER_S = 15.0
WARM_S = 3.0
TO_REACH = 0.95


class Costly(Dataset[torch.Tensor]):
    """Gives samples that take so many seconds of a CPU, and of waiting; one of `one_in` takes `long_s`."""

    def __init__(self, cpu_s: float = 0.0, waits_s: float = 0.0, one_in: int = 0, long_s: float = 0.0) -> None:
        self.cpu_s, self.waits_s, self.one_in, self.long_s = cpu_s, waits_s, one_in, long_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        until_s = time.thread_time() + self.cpu_s
        is_long = self.one_in and random.Random(index).randrange(self.one_in) == 0
        time.sleep(self.long_s if is_long else self.waits_s)
        while time.thread_time() < until_s:
            pass
        return torch.tensor(index)


@dataclasses.dataclass(frozen=True)
class Work:
    """A dataset, and the trainer's `rhythm`: seconds in which it takes what comes, and in which it takes nothing."""

    dataset: Callable[[], Any]
    batch_size: int = BATCH
    rhythm: tuple[float, float] | None = None


def _pictures() -> ImageFolder:
    directory = cached_pictures(PICTURES, 2, lambda directory, so_far: None)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return ImageFolder(str(directory), transforms.Compose(steps))


WORKS = {
    "jpeg": Work(_pictures, 64),
    "sleep": Work(lambda: Costly(waits_s=0.02)),
    "mixed": Work(lambda: Costly(cpu_s=0.005, waits_s=0.03)),
    "tail": Work(lambda: Costly(waits_s=0.001, one_in=100, long_s=1.0)),
    "bursts": Work(lambda: Costly(waits_s=0.02), rhythm=(3.0, 3.0)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="NAME", help=", ".join(WORKS))
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    print(describe_machine())
    for name in arguments.works:
        _measure(name, WORKS[name], arguments.seconds)


def _measure(name: str, work: Work, seconds: float) -> None:
    dataset = work.dataset()
    common: dict[str, Any] = {"batch_size": work.batch_size, "shuffle": True, "drop_last": True}
    theirs = {}
    # DataLoader's own, on a machine of few CPUs.
    warnings.filterwarnings("ignore", "This DataLoader will create")
    for workers in SWEEP:
        loader = DataLoader(dataset, num_workers=workers, persistent_workers=True, **common)
        theirs[workers] = _rate(endless(loader), work, WARM_S, seconds)
        print(f"  {name}: DataLoader, {workers:2} workers  {theirs[workers]:10,.1f} samples/s", flush=True)
        del loader
    with own_daemon(autotune=True) as directory, PrefetchLoader(dataset, **common) as ours:
        rate = _rate(endless(ours), work, TUNED_AFTER_S, seconds)
        found = read_report(runtime_paths(f"{directory}/d.sock")).snapshot
        assert found is not None
        (stream,) = found["streams"]
    best = max(theirs, key=lambda workers: theirs[workers])
    print(f"  {name}: prefetchd, {stream['workers_limit']:2} workers   {rate:10,.1f} samples/s")
    for change in stream["tuning"]:
        print(f"      {change['ago_s']:4.0f} s ago: {change['before']} -> {change['workers']}: {change['why']}")
    print(f"{name}: {rate / theirs[best]:.2f} of DataLoader's best, {best} workers   to reach: {TO_REACH}", flush=True)


def _rate(batches: Iterator[Any], work: Work, warm_s: float, seconds: float) -> float:
    """Returns the samples a second that a trainer gets which takes them in the work's rhythm."""
    _take(batches, work, warm_s)
    began_s = time.perf_counter()
    taken = _take(batches, work, seconds)
    return taken * work.batch_size / (time.perf_counter() - began_s)


def _take(batches: Iterator[Any], work: Work, seconds: float) -> int:
    until_s, taken = time.perf_counter() + seconds, 0
    pauses_at_s = time.perf_counter() + work.rhythm[0] if work.rhythm is not None else float("inf")
    while time.perf_counter() < until_s:
        if time.perf_counter() >= pauses_at_s and work.rhythm is not None:
            time.sleep(work.rhythm[1])
            pauses_at_s = time.perf_counter() + work.rhythm[0]
        next(batches)
        taken += 1
    return taken


if __name__ == "__main__":
    main()
