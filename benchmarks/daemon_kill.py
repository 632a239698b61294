"""How long does a trainer stall whose daemon is killed or restarted, with batches left in the ring, and with none?

    python -m benchmarks.daemon_kill [--rounds N]

The daemon is killed (SIGKILL) in the middle of an epoch, and the trainer starts it again by itself; or `prefetchd
restart` starts another in its place. "full": the ring is
full and the trainer computes STEP_S a batch; its longest next() stands beside that of the same loop without a kill.
"empty": the trainer takes what is there without a pause, from a ring of few slots; its longest next() stands beside
what the same trainer's first batch takes where no daemon runs: daemon, zygote with its imports, one batch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_demo.machine import describe_machine
from torch.utils.data import Dataset

from benchmarks.harness import own_daemon

BATCH = 64
FULL, EMPTY = 64, 4
"""Slots of the rings."""
STEP_S = 0.4
SAMPLE = (3, 224, 224)


class Pictures(Dataset[torch.Tensor]):
    """Makes arrays from their index, as if decoded."""

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = np.random.default_rng(index).integers(0, 256, SAMPLE, dtype=np.uint8)
        return torch.from_numpy(pixels)


def loader(slots: int) -> PrefetchLoader:
    return PrefetchLoader(Pictures(), batch_size=BATCH, num_workers=2, buffer=slots)


def status() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "prefetchd", "status", "--json"], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kill_daemon() -> None:
    os.kill(status()["daemon"]["pid"], signal.SIGKILL)


def restart_daemon() -> None:
    """Has another daemon started, and does not wait for it: the trainer goes on meanwhile."""
    subprocess.Popen([sys.executable, "-m", "prefetchd", "restart"], stdout=subprocess.DEVNULL)


def wait_for_full_ring() -> None:
    while not _is_full(status()["streams"]):
        time.sleep(0.2)


def _is_full(streams: list[dict[str, Any]]) -> bool:
    ring = streams[0]["ring"] if streams else None
    return ring is not None and ring["ready"] >= FULL // 2 - 2 and not ring["filling"]


def longest(batches: Iterator[Any], count: int, step_s: float) -> float:
    """Returns the longest next() of so many, in seconds."""
    waits = []
    for _ in range(count):
        began_s = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - began_s)
        time.sleep(step_s)
    return max(waits)


def full() -> tuple[float, float, float]:
    """Returns the longest next() over a full ring: (nothing happens, the daemon is killed, it is restarted)."""
    with own_daemon(workers=2), loader(FULL) as found:
        batches = iter(found)
        next(batches)
        waits = []
        for ends_daemon in (None, kill_daemon, restart_daemon):
            wait_for_full_ring()
            if ends_daemon is not None:
                ends_daemon()
            waits.append(longest(batches, FULL // 2 - 2, STEP_S))
        assert found.stats()["reconnections"] == 2, "the daemon did not come back in time: raise STEP_S"
        return waits[0], waits[1], waits[2]


def empty(end_daemon: Callable[[], None]) -> float:
    """Returns the longest next() over an empty ring whose daemon ends."""
    with own_daemon(workers=2), loader(EMPTY) as found:
        batches = iter(found)
        longest(batches, 3 * EMPTY, 0.0)
        end_daemon()
        waited_s = longest(batches, 3 * EMPTY, 0.0)
        while not found.stats()["reconnections"]:
            waited_s = max(waited_s, longest(batches, EMPTY, 0.0))
        assert found.stats()["reconnections"] == 1
        return waited_s


def from_nothing() -> float:
    """Returns the time of the first batch where no daemon runs."""
    with own_daemon(workers=2):
        subprocess.run([sys.executable, "-m", "prefetchd", "stop"], check=True, stdout=subprocess.DEVNULL)
        began_s = time.perf_counter()
        with loader(EMPTY) as found:
            next(iter(found))
            return time.perf_counter() - began_s


def show(what: str, values: list[float], scale: float, unit: str) -> float:
    middle = statistics.median(values)
    print(f"  {what:46} {middle * scale:9.2f} {unit}   ({min(values) * scale:.2f} to {max(values) * scale:.2f})")
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(describe_machine())
    calm, killed, restarted, dry, dry_restarted, anew = [], [], [], [], [], []
    for _ in range(rounds):
        for values, value in zip((calm, killed, restarted), full()):
            values.append(value)
        dry.append(empty(kill_daemon))
        dry_restarted.append(empty(restart_daemon))
        anew.append(from_nothing())
    print("\nthe longest next()")
    show("full ring, nobody is killed", calm, 1000, "ms")
    show("full ring, the daemon is killed", killed, 1000, "ms")
    show("full ring, the daemon is restarted", restarted, 1000, "ms")
    show("empty ring, the daemon is killed", dry, 1, "s")
    show("empty ring, the daemon is restarted", dry_restarted, 1, "s")
    show("first batch where no daemon runs", anew, 1, "s")
    print(f"  killed / first batch: {statistics.median(a / b for a, b in zip(dry, anew)):.2f}")


if __name__ == "__main__":
    main()
