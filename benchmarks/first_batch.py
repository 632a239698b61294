"""How soon has a script its first batch, and what does that cost? Nothing runs before it.

    python -m benchmarks.first_batch [--rounds N] [--array BYTES] [--imports MODULE ...]

Each run is a script of its own, whose clocks begin when its imports are done and its dataset is made. The constructor,
the time until the first batch, CPU until then, of all processes, and 3 s later the PSS of all processes, the ring left
aside. Ours starts its daemon, "daemon runs" finds one. The dataset is small, or holds an array of so many bytes, or the
script has imported other packages, which start threads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from prefetchd_client.demo.machine import describe_machine
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import own_daemon

OURS, RUNS, DATALOADER = "prefetchd", "daemon runs", "DataLoader"
SETTLE_S = 3.0
MARK = "PREFETCHD_SOCKET"
MEASURES = {"constructor_ms": "constructor, ms", "first_ms": "first batch, ms", "cpu_ms": "CPU until then, ms"}
MEASURES |= {"pss_mb": "PSS without the ring, MB", "taken_mb": "taken of the machine's memory, MB"}


class Rows(Dataset[torch.Tensor]):
    """Small pictures, and an array that is only held."""

    def __init__(self, array_bytes: int) -> None:
        self.array = np.ones(array_bytes, np.uint8)

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 64, 64), float(index))


def script(loader: str, array_bytes: int, imports: list[str]) -> None:
    """What a user would run; prints what was measured."""
    for each in imports:
        importlib.import_module(each)
    if loader == DATALOADER:
        kind: Any = DataLoader
    else:
        from prefetchd_client import PrefetchLoader as kind  # noqa: N813 - in the place of DataLoader
    dataset = Rows(array_bytes)
    available = psutil.virtual_memory().available
    cpu_s, began_s = all_cpu_s(), time.perf_counter()
    made = kind(dataset, batch_size=32, num_workers=2)
    constructed_s = time.perf_counter() - began_s
    batches = iter(made)
    next(batches)
    first_s = time.perf_counter() - began_s
    cpu_s = all_cpu_s() - cpu_s
    time.sleep(SETTLE_S)
    found = {"constructor_ms": constructed_s * 1000, "first_ms": first_s * 1000, "cpu_ms": cpu_s * 1000}
    found |= {"pss_mb": pss_bytes() / 1e6, "taken_mb": (available - psutil.virtual_memory().available) / 1e6}
    print(json.dumps(found), flush=True)
    del batches
    if loader != DATALOADER:
        made.close()


def ours() -> list[psutil.Process]:
    """All processes of this run: each has its socket's name in its environment."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for each in psutil.process_iter():
        try:
            if mark in Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0"):
                found.append(each)
        except OSError:
            continue
    return found


def all_cpu_s() -> float:
    """Of all processes of this run, also of those that have ended in it, once they were waited for."""
    return sum(sum(each.cpu_times()[:4]) for each in ours())


def pss_bytes() -> int:
    total = 0
    for each in ours():
        try:
            text = Path(f"/proc/{each.pid}/smaps").read_text()
        except OSError:
            continue
        path = ""
        for line in text.splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                path = line[73:] if len(line) > 73 else ""
            elif line.startswith("Pss:") and not ("prefetchd-" in path and "ring" in path):
                total += int(line.split()[1]) * 1024
    return total


def run(loader: str, array_bytes: int, imports: list[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.first_batch", "--run", loader, "--array", str(array_bytes)]
    command += ["--imports", *imports]
    if loader == RUNS:
        with own_daemon():
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as directory:
        environment = os.environ | {MARK: f"{directory}/d.sock", "XDG_STATE_HOME": directory}
        found: dict[str, float] = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
        )
        if loader == OURS:
            stop = [sys.executable, "-m", "prefetchd", "stop"]
            subprocess.run(stop, check=False, env=environment, stdout=subprocess.DEVNULL)
        return found


def compare(title: str, rounds: int, array_bytes: int, imports: list[str]) -> None:
    """The contestants in turn, round after round."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in (OURS, RUNS, DATALOADER)}
    for _ in range(rounds):
        for name, found in figures.items():
            found.append(run(name, array_bytes, imports))
    print(f"\n{title}")
    for measure, text in MEASURES.items():
        medians = {name: statistics.median(each[measure] for each in found) for name, found in figures.items()}
        of = medians[DATALOADER]
        shown = "   ".join(
            f"{name} {median:9.1f}" + (f" ({median / of:5.2f}, {median - of:+8.1f})" if name != DATALOADER else "")
            for name, median in medians.items()
        )
        print(f"  {text:36} {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--array", type=int, default=2 << 30, metavar="BYTES")
    parser.add_argument("--imports", nargs="*", default=["pyarrow", "pandas", "datasets"], metavar="MODULE")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        script(arguments.run, arguments.array, arguments.imports)
        return
    print(describe_machine())
    compare("a small dataset", arguments.rounds, 0, [])
    compare(f"a dataset that holds {arguments.array / 1e9:.1f} GB", max(3, arguments.rounds // 2), arguments.array, [])
    there = [each for each in arguments.imports if importlib.util.find_spec(each) is not None]
    if there:
        compare(f"after import {', '.join(there)}", arguments.rounds, 0, there)


if __name__ == "__main__":
    main()
