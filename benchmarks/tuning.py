"""Is the number of workers right that nobody has said? After 15 s beside DataLoader with each of 1, 2, 4, 8, 16, 32.

python -m benchmarks.tuning [--works NAME ...] [--seconds S] [--rounds N]

Each loader is given a dataset and a batch size, in a process of its own (benchmarks.tuning_trainer). After its first
batch prefetchd runs for 15 s, DataLoader for 3; then what each gives its trainer is measured, for 10 s. Of two streams
at once the figure is the geometric mean of both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from prefetchd_demo.machine import describe_machine

from benchmarks.memory_groups import memory_group
from benchmarks.tuning_trainer import WORKS

SWEEP = (1, 2, 4, 8, 16, 32)
TUNED_AFTER_S = 15.0
WARM_S = 3.0
TO_REACH = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="NAME", help=", ".join(WORKS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    print(describe_machine())
    for name in arguments.works:
        found = [_measure(name, arguments.seconds) for _ in range(arguments.rounds)]
        print(
            f"{name}: {statistics.median(found):.2f} of DataLoader's best, of {len(found)} rounds "
            f"({min(found):.2f} to {max(found):.2f})   to reach: {TO_REACH}",
            flush=True,
        )


def _measure(name: str, seconds: float) -> float:
    """Returns what prefetchd gives, as a ratio to DataLoader's best."""
    theirs = {}
    for workers in SWEEP:
        found = _run(name, seconds, WARM_S, workers)
        theirs[workers] = _rate(found)
        print(f"  {name}: DataLoader, {workers:2} workers  {_words(found)}", flush=True)
    found = _run(name, seconds, TUNED_AFTER_S)
    numbers = " and ".join(str(stream["workers"]) for stream in found["streams"])
    print(f"  {name}: prefetchd, {numbers:>2} workers   {_words(found)}")
    for stream in found["streams"]:
        for change in stream["tuning"]:
            print(f"      {change['ago_s']:4.0f} s ago: {change['before']} -> {change['workers']}: {change['why']}")
    best = max(theirs, key=lambda workers: theirs[workers])
    ratio = _rate(found) / theirs[best]
    print(f"  {name}: {ratio:.2f} of DataLoader's best, {best} workers", flush=True)
    return ratio


def _run(name: str, seconds: float, warm_s: float, workers: int = 0) -> dict[str, Any]:
    """Returns what one trainer has told; no rates when it was killed."""
    command = [sys.executable, "-m", "benchmarks.tuning_trainer", name]
    command += ["--warm", str(warm_s), "--seconds", str(seconds), "--workers", str(workers)]
    limit_bytes = WORKS[name].group_bytes
    with memory_group(limit_bytes) if limit_bytes else contextlib.nullcontext() as group:
        done = subprocess.run(_inside(group, command), capture_output=True, text=True, check=False)
    if done.returncode:
        if not limit_bytes:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return {"rates": [], "streams": [], "error": done.stderr.strip().rpartition("\n")[2]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _inside(group: Path | None, command: list[str]) -> list[str]:
    if group is None:
        return command
    return ["sh", "-c", f'echo $$ > "{group}/cgroup.procs"; exec "$@"', "sh", *command]


def _rate(found: dict[str, Any]) -> float:
    rates = found["rates"]
    return math.prod(rates) ** (1 / len(rates)) if rates else 0.0


def _words(found: dict[str, Any]) -> str:
    if not found["rates"]:
        return f"     ended: {found['error'][:80]}"
    return " and ".join(f"{rate:10,.1f}" for rate in found["rates"]) + " samples/s"


if __name__ == "__main__":
    main()
