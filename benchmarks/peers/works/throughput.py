"""measure_throughput takes batches as fast as they come: samples a second, CPU time, memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator

from benchmarks.peers.checks import Batch, touch
from benchmarks.peers.job import Job
from benchmarks.peers.usage import CpuMeter, pss_mb

WARM_BATCHES, WARM_S = 10, 2.0
"""More batches than any contestant has ready at its start; and a time in which workers start, and memory is touched for
the first time."""


def endless(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Yields batches, epoch after epoch."""
    while True:
        yield from loader


def measure_throughput(job: Job, feed: str) -> dict[str, float]:
    """Measures once workers have started and pages were touched for the first time."""
    batches = endless(job.loader(feed))
    warm_up(batches, job)
    return take(batches, job)


def warm_up(batches: Iterator[Batch], job: Job) -> None:
    """Takes batches until loader and memory are as they stay."""
    until_s = time.perf_counter() + WARM_S * (not job.is_quick)
    for number in itertools.count(1):
        samples, labels = next(batches)
        touch(samples)
        del samples, labels
        if number >= WARM_BATCHES and time.perf_counter() >= until_s:
            return


def take(batches: Iterator[Batch], job: Job) -> dict[str, float]:
    """Takes batches for a window's time. Memory is looked at behind it, the loader still at work."""
    cpu, count = CpuMeter(job.mark), 0
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + job.window_s:
        samples, labels = next(batches)
        touch(samples)
        count += len(samples)
        del samples, labels
    took_s = time.perf_counter() - began_s
    spent_s = cpu.spent_s()
    memory_mb = pss_mb(job.mark)
    return {
        "samples_per_s": count / took_s,
        "cpu_s_per_1000": spent_s / count * 1000,
        "pss_mb": memory_mb,
        "samples": count,
        "took_s": took_s,
    }
