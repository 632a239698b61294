"""What does the daemon itself cost? CPU a batch at two tasks each, and its memory.

    python -m benchmarks.overhead [--batches N]

For 10 and for 10,000 buffered batches, and for 1e4 and 1e9 samples. A batch is two tasks of about 2 ms, so that two
workers fill it together. The ring is full when the count begins and when it ends; in between the trainer takes batches
as fast as they come.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from typing import Any

import psutil
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from torch.utils.data import Dataset

from benchmarks.harness import endless, own_daemon

DEPTHS = (10, 10_000)
LENGTHS = (10**4, 10**9)
BATCH = 32
SAMPLE_S = 125e-6
REACH_US = 300.0
REACH_RSS_MB = 100.0


class Busy(Dataset[torch.Tensor]):
    """Has `length` small samples, each made in SAMPLE_S of CPU time."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.sample = torch.zeros(16)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        until_s = time.perf_counter() + SAMPLE_S
        while time.perf_counter() < until_s:
            pass
        return self.sample


def status() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "prefetchd", "status", "--json"], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def when_full(depth: int, made: int = 0) -> dict[str, Any]:
    """Returns the stream, once its ring is full and `made` batches have been made."""
    while True:
        # A daemon that has just started may not have the stream yet.
        stream: dict[str, Any] = next(iter(status()["streams"]), {})
        ring = stream.get("ring")
        is_full = ring and ring["slots"] >= depth and ring["ready"] + ring["leased"] >= ring["slots"] - 1
        if is_full and stream["produced_batches"] >= made:
            return stream
        time.sleep(0.5)


def run(depth: int, length: int, batches: int) -> tuple[float, float, float, float]:
    """Returns (CPU a batch in us, tasks a batch, RSS in MB, batches a second)."""
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": 2}
    with own_daemon(workers=2), PrefetchLoader(Busy(length), buffer=depth, **arguments) as loader:
        stream = endless(loader)
        next(stream)
        before = when_full(depth)
        process = psutil.Process(status()["daemon"]["pid"])
        cpu = process.cpu_times()
        began_s = time.perf_counter()
        for _ in itertools.islice(stream, batches):
            pass
        took_s = time.perf_counter() - began_s
        # The status is a moment old: it may be full still, or again.
        after, cpu_after = when_full(depth, before["produced_batches"] + batches // 2), process.cpu_times()
        made = after["produced_batches"] - before["produced_batches"]
        tasks = after["tasks"] - before["tasks"]
        spent_s = cpu_after.user + cpu_after.system - cpu.user - cpu.system
        return spent_s / made * 1e6, tasks / made, process.memory_info().rss / 1e6, batches / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=12_000)
    arguments = parser.parse_args()
    print(describe_machine())
    for depth, length in itertools.product(DEPTHS, LENGTHS):
        cpu_us, tasks, rss_mb, rate = run(depth, length, arguments.batches)
        print(
            f"  {depth:6} buffered, {length:13,} samples: {cpu_us:6.0f} us a batch of {tasks:.1f} tasks "
            f"(ratio to {REACH_US:.0f}: {cpu_us / REACH_US:.2f}), RSS {rss_mb:.0f} MB (to stay under "
            f"{REACH_RSS_MB:.0f}), {rate:,.0f} batches/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
