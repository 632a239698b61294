"""First batch from nothing: how long does a script wait for it, imports included and without?

Clocks: the start of the process, and that of the loader's construction, behind the imports of torch and of the
contestant's packages. The CPU time is that of all processes since the start of the script, as far as the first batch.
"""

from __future__ import annotations

import time

from benchmarks.peers.checks import touch
from benchmarks.peers.job import Job
from benchmarks.peers.usage import cpu_s, pss_mb
from benchmarks.peers.works.work import PSS, Column, Work

SETTLE_S = 2.0
FROM_START = Column("from_start_s", "from the start of the process, s", 2)
FROM_LOADER = Column("first_ms", "from the loader's construction, ms", 0)
CPU_S = Column("cpu_s", "CPU-s until then, imports included", 2)
WORK = Work(
    "first batch",
    "The first batch of JPEGs to bytes in a script that nothing has run before; memory 2 s later, buffers full.",
    "jpeg-bytes",
    (FROM_START, FROM_LOADER, CPU_S, PSS),
)


def measure(job: Job) -> dict[str, float]:
    # The contestant's packages are imported before the clock of the loader begins.
    _ = job.module
    began_s = time.monotonic()
    batches = iter(job.loader(WORK.feed))
    samples, _ = next(batches)
    touch(samples)
    first_s = time.monotonic()
    spent_s = cpu_s(job.mark)
    time.sleep(SETTLE_S)
    return {
        "from_start_s": first_s - job.spawned_s,
        "first_ms": (first_s - began_s) * 1000,
        "cpu_s": spent_s,
        "pss_mb": pss_mb(job.mark),
    }
