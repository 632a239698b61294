"""Does anything grow? A million small batches, over many epochs and several loaders.

    python -m benchmarks.soak [--minutes N] [--batches N]

Ends after so many minutes, or so many batches. Memory is PSS, in which a page that several share counts once, without
the pages of files: those are shared with whatever else runs on the machine. It is that of the daemon, of this trainer,
of all zygotes and workers together. Exits 1 when, from the first tenth to the last, memory grew by more than
GROWTH_MB, or descriptors, threads, processes or segments became more.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from torch.utils.data import Dataset

from benchmarks.harness import own_daemon, pss_mb
from prefetchd.status.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths

LENGTH = 20_000
BATCH = 4
RING_BATCHES = 256
EPOCHS_A_LOADER = 10
SAMPLE_EVERY_BATCHES = 2_500
WARM_UP = 4
"""The number of samples at the beginning that do not count: heaps find their size, pages are touched for the first
time."""
GROWTH_MB = 4.0


class Small(Dataset[torch.Tensor]):
    """Has samples of 256 bytes."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index))


@dataclasses.dataclass(frozen=True)
class Sample:
    """Holds everything that must not grow, at one moment, after `batches` batches. `shm_mb` is all shared memory of
    this daemon, `segments` how many pieces of it there are."""

    batches: int
    daemon_mb: float
    trainer_mb: float
    workers_mb: float
    shm_mb: float
    segments: int
    daemon_fds: int
    trainer_fds: int
    daemon_threads: int
    trainer_threads: int
    processes: int


def take_sample(batches: int, daemon: psutil.Process) -> Sample:
    prefix = f"prefetchd-{runtime_paths().instance}-"
    segments = [each for each in Path("/dev/shm").iterdir() if each.name.startswith(prefix)]
    children = daemon.children(recursive=True)
    trainer = psutil.Process()
    return Sample(
        batches,
        pss_mb(daemon.pid),
        pss_mb(os.getpid()),
        sum(pss_mb(each.pid) for each in children),
        sum(each.stat().st_blocks * 512 for each in segments) / 1e6,
        len(segments),
        daemon.num_fds(),
        trainer.num_fds(),
        daemon.num_threads(),
        trainer.num_threads(),
        len(children),
    )


def samples(batches: int, until_s: float) -> Iterator[Sample]:
    """Trains, and yields a sample every SAMPLE_EVERY_BATCHES batches."""
    taken = 0
    loaders = 0
    while taken < batches and time.monotonic() < until_s:
        with PrefetchLoader(Small(), batch_size=BATCH, shuffle=True, buffer=RING_BATCHES, stream="soak") as loader:
            loaders += 1
            for _ in range(EPOCHS_A_LOADER):
                for _ in loader:
                    taken += 1
                    if taken % SAMPLE_EVERY_BATCHES == 0:
                        report = read_report(runtime_paths())
                        assert report.snapshot is not None
                        yield take_sample(taken, psutil.Process(report.snapshot["daemon"]["pid"]))
                    if taken >= batches or time.monotonic() >= until_s:
                        break
    print(f"{taken:,} batches, {taken * BATCH // LENGTH} epochs, {loaders} loaders")


def judge(found: list[Sample]) -> bool:
    """Prints first, last and slope of everything. Returns True when nothing grew."""
    steady = found[WARM_UP:]
    if not steady:
        print(f"too short to judge: more than {WARM_UP * SAMPLE_EVERY_BATCHES:,} batches are needed; raise --minutes")
        return False
    tenth = max(1, len(steady) // 10)
    went_well = True
    print(f"  {'':18} {'first tenth':>12} {'last tenth':>12} {'a million batches more':>24}")
    for field in dataclasses.fields(Sample)[1:]:
        values = [float(getattr(each, field.name)) for each in steady]
        first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
        at = [each.batches / 1e6 for each in steady]
        slope = statistics.linear_regression(at, values).slope if len(steady) > 1 else 0.0
        most = first + (GROWTH_MB if field.name.endswith("_mb") else 0)
        verdict = "" if last <= most else f"   GREW, allowed: {most:.1f}"
        went_well = went_well and not verdict
        print(f"  {field.name:18} {first:12.1f} {last:12.1f} {slope:+24.2f}{verdict}")
    return went_well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--batches", type=int, default=1_000_000)
    arguments = parser.parse_args()
    print(describe_machine())
    found = []
    with own_daemon(workers=2):
        began_s = told_s = time.monotonic()
        for sample in samples(arguments.batches, began_s + 60 * arguments.minutes):
            found.append(sample)
            if time.monotonic() > told_s + 10:
                told_s = time.monotonic()
                print(f"  {sample.batches:9,} batches  {dataclasses.astuple(sample)[1:]}", flush=True)
        print(f"{(time.monotonic() - began_s) / 60:.1f} min")
        return 0 if judge(found) else 1


if __name__ == "__main__":
    sys.exit(main())
