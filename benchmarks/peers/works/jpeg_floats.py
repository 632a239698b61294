"""JPEG to floats: the same, normalised."""

from __future__ import annotations

from benchmarks.peers.job import Job
from benchmarks.peers.works.throughput import measure_throughput
from benchmarks.peers.works.work import THROUGHPUT, Work

WORK = Work(
    "JPEG to floats",
    "The same, normalised to 32-bit floats.",
    "jpeg-floats",
    THROUGHPUT,
)


def measure(job: Job) -> dict[str, float]:
    return measure_throughput(job, WORK.feed)
