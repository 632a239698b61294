"""This module has what all benchmarks share: interleaved rounds, medians, ratios, and what machine they ran on."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prefetchd_demo.machine import describe_machine
from torch.utils.data import DataLoader


@contextlib.contextmanager
def own_daemon(
    *, workers: int | None = None, config: Path | None = None, autotune: bool = False, ray: str = ""
) -> Iterator[Path]:
    """Runs a daemon of the benchmark's own, gone afterwards; `ray` is the cluster that it knows. Yields the directory
    of its socket and log."""
    import subprocess
    import sys

    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as directory:
        os.environ["PREFETCHD_SOCKET"] = f"{directory}/d.sock"
        os.environ["XDG_STATE_HOME"] = directory
        command = [sys.executable, "-m", "prefetchd"]
        start = [*command, "run", "--detach", *(["--workers", str(workers)] if workers else [])]
        start += ["--config", str(config)] if config is not None else []
        start += ["--ray", ray] if ray else []
        start += ["--autotune" if autotune else "--no-autotune"]
        subprocess.run(start, check=True, stdin=subprocess.DEVNULL)
        try:
            yield Path(directory)
        finally:
            subprocess.run([*command, "stop"], check=False, stdout=subprocess.DEVNULL)


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yields batches, epoch after epoch."""
    while True:
        yield from loader


def interleave(rounds: int, contestants: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Takes each contestant's figure, round after round, in turn: a drift of the machine hits all alike."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            figures[name].append(run())
            print(f"  round {number + 1} of {rounds}  {name:28} {figures[name][-1]:12,.2f}", flush=True)
    return figures


def report(title: str, unit: str, figures: dict[str, list[float]], ours: str, others: dict[str, float | None]) -> None:
    """Prints medians, and the median of ours over each other's, round by round; `others` names the ratios to reach."""
    print(f"\n{title}\n{describe_machine()}")
    for name, values in figures.items():
        low, high = min(values), max(values)
        print(f"  {name:28} median {statistics.median(values):12,.2f} {unit}   ({low:,.2f} to {high:,.2f})")
    for other, goal in others.items():
        ratios = [mine / its for mine, its in zip(figures[ours], figures[other])]
        wanted = f"   to reach: {goal:.2f}" if goal is not None else ""
        print(f"  {ours} / {other}: {statistics.median(ratios):.2f}   ({min(ratios):.2f} to {max(ratios):.2f}){wanted}")


def stopwatch() -> Callable[[], float]:
    """Returns a function that returns the seconds since this call."""
    began_s = time.perf_counter()
    return lambda: time.perf_counter() - began_s


def pss_mb(pid: int) -> float:
    """Returns what the process has of memory, less of what is read from files. What it shares with others counts for
    each in part."""
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        found = {line.split()[0]: int(line.split()[1]) for line in rollup if line.startswith("Pss_")}
    return (found["Pss_Anon:"] + found["Pss_Shmem:"]) / 1e3
