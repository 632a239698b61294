"""Steps of 30 ms with the CPUs free: how much of its time does such a trainer wait?"""

from __future__ import annotations

import itertools
import time

from benchmarks.peers.checks import touch
from benchmarks.peers.feeds import FEEDS
from benchmarks.peers.job import Job
from benchmarks.peers.usage import CpuMeter, pss_mb
from benchmarks.peers.works.throughput import WARM_BATCHES, endless
from benchmarks.peers.works.work import CPU, PSS, Column, Work

STEP_S = 0.03
BATCH = 16
WORK = Work(
    "30 ms steps",
    f"A trainer whose step is a pause of 30 ms, as on a GPU, takes batches of {BATCH} JPEGs to bytes: less than two "
    "workers make.",
    "jpeg-bytes",
    (
        Column("waited_percent", "waited, % of the time", 1),
        Column("longest_ms", "longest wait, ms", 0),
        CPU,
        PSS,
    ),
)


def measure(job: Job) -> dict[str, float]:
    batches = endless(job.loader(FEEDS[WORK.feed].of(BATCH)))
    for samples, _ in itertools.islice(batches, WARM_BATCHES):
        touch(samples)
        time.sleep(STEP_S)
    cpu, waits_s, count = CpuMeter(job.mark), [], 0
    began_s = time.perf_counter()
    while time.perf_counter() < began_s + 2 * job.window_s:
        asked_s = time.perf_counter()
        samples, _ = next(batches)
        touch(samples)
        waits_s.append(time.perf_counter() - asked_s)
        count += len(samples)
        del samples
        time.sleep(STEP_S)
    took_s = time.perf_counter() - began_s
    spent_s = cpu.spent_s()
    return {
        "waited_percent": sum(waits_s) / took_s * 100,
        "longest_ms": max(waits_s) * 1000,
        "cpu_s_per_1000": spent_s / count * 1000,
        "pss_mb": pss_mb(job.mark),
    }
