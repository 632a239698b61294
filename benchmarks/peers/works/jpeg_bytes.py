"""JPEG to bytes: how many pictures a second are decoded, cropped and mirrored?"""

from __future__ import annotations

from benchmarks.peers.job import Job
from benchmarks.peers.works.throughput import measure_throughput
from benchmarks.peers.works.work import THROUGHPUT, Work

WORK = Work(
    "JPEG to bytes",
    "JPEGs of 500x375: decoded, a random part of them resized to 224x224, mirrored or not, as bytes, batches of 64.",
    "jpeg-bytes",
    THROUGHPUT,
)


def measure(job: Job) -> dict[str, float]:
    return measure_throughput(job, WORK.feed)
