"""Prepared pictures: how many a second are read, cropped and mirrored?"""

from __future__ import annotations

from benchmarks.peers.job import Job
from benchmarks.peers.works.throughput import measure_throughput
from benchmarks.peers.works.work import CHEAP_THROUGHPUT, Work

WORK = Work(
    "prepared pictures",
    "The JPEGs resized to 256x256 before, in each contestant's own format: cropped to 224x224, mirrored or not, bytes.",
    "prepared",
    CHEAP_THROUGHPUT,
)


def measure(job: Job) -> dict[str, float]:
    return measure_throughput(job, WORK.feed)
