"""How long does next() take when the batch is ready? Batches of 38.5 MB, the release of the one before included.

    python -m benchmarks.next_latency [--rounds N]

Back to back, and with 50 ms of other work in between, which leaves the caches cold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from torch.utils.data import DataLoader

from benchmarks.handoff import BATCH, Source
from benchmarks.harness import endless, own_daemon

READY_BATCHES = 24
WORK_S = 0.05


def wait_for_ring() -> None:
    """Waits until all slots are ready or in the loop's hands."""
    while True:
        done = subprocess.run([sys.executable, "-m", "prefetchd", "status", "--json"], check=True, capture_output=True)
        ring = json.loads(done.stdout)["streams"][0]["ring"]
        if ring is not None and ring["slots"] >= READY_BATCHES and not ring["filling"] and ring["free"] == 0:
            return
        time.sleep(0.2)


def latencies_us(batches: Iterator[torch.Tensor], count: int, work: Callable[[], None] | None) -> list[float]:
    """Returns each next()'s time; the batch before is dropped within it."""
    found = []
    batch = next(batches)
    for _ in range(count):
        if work is not None:
            work()
        began_ns = time.perf_counter_ns()
        batch = next(batches)
        found.append((time.perf_counter_ns() - began_ns) / 1000)
    del batch
    return found


def busy_work() -> Callable[[], None]:
    matrix = torch.rand(1024, 1024)

    def work() -> None:
        until_s = time.perf_counter() + WORK_S
        while time.perf_counter() < until_s:
            torch.mm(matrix, matrix)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    dataset, work = Source(torch.uint8), busy_work()
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": 2}
    found: dict[str, list[float]] = {}
    with own_daemon(workers=2), PrefetchLoader(dataset, buffer=READY_BATCHES, **common) as ours:
        theirs = DataLoader(dataset, persistent_workers=True, prefetch_factor=READY_BATCHES // 2, **common)
        streams = {"prefetchd": endless(ours), "DataLoader": endless(theirs)}
        for stream in streams.values():
            latencies_us(stream, 2 * READY_BATCHES, None)  # pages are touched for the first time
        for _ in range(rounds):
            for name, stream in streams.items():
                for how, between in (("back to back", None), ("after 50 ms of work", work)):
                    next(stream)
                    if name == "prefetchd":
                        wait_for_ring()
                    else:
                        time.sleep(2.0)
                    found.setdefault(f"{name}, {how}", []).extend(latencies_us(stream, READY_BATCHES // 2, between))
    print(f"\nnext_latency\n{describe_machine()}")
    for name, values in found.items():
        p50, p99 = np.percentile(values, [50, 99])
        print(f"  {name:34} p50 {p50:9.1f} us   p99 {p99:9.1f} us   ({len(values)} calls)")
    for how in ("back to back", "after 50 ms of work"):
        ratio = np.median(found[f"DataLoader, {how}"]) / np.median(found[f"prefetchd, {how}"])
        print(f"  DataLoader / prefetchd, {how}: p50 ratio {ratio:.0f}")


if __name__ == "__main__":
    main()
