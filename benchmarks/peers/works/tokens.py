"""Tokens: how many short rows a second come out of a file?"""

from __future__ import annotations

from benchmarks.peers.job import Job
from benchmarks.peers.works.throughput import measure_throughput
from benchmarks.peers.works.work import CHEAP_THROUGHPUT, Work

WORK = Work(
    "tokens",
    "100,000 rows of 128 tokens of 2 bytes, shuffled, as 64-bit numbers, batches of 512.",
    "tokens",
    CHEAP_THROUGHPUT,
)


def measure(job: Job) -> dict[str, float]:
    return measure_throughput(job, WORK.feed)
