"""Rerun: how long does the same script wait that runs again, from its beginning, after a run that has ended?

What a daemon has spent before the second run began does not count.
"""

from __future__ import annotations

import itertools
import time

from benchmarks.peers.checks import touch
from benchmarks.peers.job import Job
from benchmarks.peers.usage import CpuMeter
from benchmarks.peers.works.first_batch import CPU_S, FROM_LOADER, FROM_START
from benchmarks.peers.works.work import Column, Work

SOON = 15
WORK = Work(
    "rerun",
    f"The same script once more, 3 s after a run of {SOON + 1} batches: the first batch, and those after it.",
    "jpeg-bytes",
    (FROM_START, FROM_LOADER, Column("soon_ms", f"the {SOON} batches after it, ms", 0), CPU_S),
    runs_before=1,
)


def measure(job: Job) -> dict[str, float]:
    # What this process has spent itself counts from its start, what others have not.
    own_s, cpu = time.process_time(), CpuMeter(job.mark)
    _ = job.module
    began_s = time.monotonic()
    batches = iter(job.loader(WORK.feed))
    samples, _ = next(batches)
    touch(samples)
    first_s = time.monotonic()
    spent_s = own_s + cpu.spent_s()
    for samples, _ in itertools.islice(batches, SOON):
        touch(samples)
    return {
        "from_start_s": first_s - job.spawned_s,
        "first_ms": (first_s - began_s) * 1000,
        "soon_ms": (time.monotonic() - first_s) * 1000,
        "cpu_s": spent_s,
    }
