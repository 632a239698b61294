"""Validation pauses: how long does a training wait that validates after each epoch?

Steps and validation steps are pauses of the trainer, as on a GPU: the CPUs are free. All of next() and iter() counts
but the very first batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.peers.checks import Batch, Checked, touch
from benchmarks.peers.feeds import FEEDS
from benchmarks.peers.job import Job
from benchmarks.peers.usage import CpuMeter, pss_mb
from benchmarks.peers.works.work import CPU, PSS, Column, Work

STEP_S, VALIDATION_STEP_S = 0.1, 0.05
EPOCHS = 2
STEPS = FEEDS["jpeg-bytes"].samples // FEEDS["jpeg-bytes"].batch_size
VALIDATION_STEPS = FEEDS["jpeg-validation"].samples // FEEDS["jpeg-validation"].batch_size
WORK = Work(
    "validation pauses",
    f"{EPOCHS} epochs of about {STEPS} steps of {STEP_S * 1000:.0f} ms, JPEGs to bytes; after each {VALIDATION_STEPS} "
    f"batches of validation of {VALIDATION_STEP_S * 1000:.0f} ms: resized, centre crop. The very first is left out.",
    "jpeg-bytes",
    (
        Column("waited_s", "waited in all, s", 2),
        Column("first_wait_ms", "an epoch's or validation's first batch, ms", 0),
        CPU,
        PSS,
    ),
)


class Waits:
    """Adds up how long the trainer waits."""

    def __init__(self) -> None:
        self.all_s: list[float] = []
        self.first_s: list[float] = []
        self.samples = 0

    def run(self, loader: Checked, most_steps: int, step_s: float) -> None:
        """Goes through an epoch: to its end, where a loader has one, or for so many steps."""
        asked_s = time.perf_counter()
        batches: Iterator[Batch] = iter(loader)
        for step in range(most_steps):
            batch = next(batches, None)
            if batch is not None:
                touch(batch[0])
            waited_s = time.perf_counter() - asked_s
            self.all_s.append(waited_s)
            if batch is None:
                break
            if step == 0:
                self.first_s.append(waited_s)
            self.samples += len(batch[0])
            del batch
            time.sleep(step_s)
            asked_s = time.perf_counter()


def measure(job: Job) -> dict[str, float]:
    training, validation = job.loader("jpeg-bytes"), job.loader("jpeg-validation")
    epochs = 1 if job.is_quick else EPOCHS
    waits = Waits()
    cpu = CpuMeter(job.mark)
    for _ in range(epochs):
        waits.run(training, STEPS + 1, STEP_S)
        waits.run(validation, VALIDATION_STEPS + 1, VALIDATION_STEP_S)
    spent_s = cpu.spent_s()
    return {
        "waited_s": sum(waits.all_s[1:]),
        "first_wait_ms": statistics.median(waits.first_s[1:]) * 1000,
        "cpu_s_per_1000": spent_s / waits.samples * 1000,
        "pss_mb": pss_mb(job.mark),
    }
