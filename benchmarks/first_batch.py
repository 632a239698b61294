"""How soon has a script its first batch, and what does that cost? Nothing runs before it.

    python -m benchmarks.first_batch [--rounds N] [--array BYTES] [--texts N] [--imports MODULE ...] [--cases CASE ...]

Each run is a script of its own, whose clocks begin when its imports are done and its dataset is made: the constructor,
the time until the first batch, CPU until then, of all processes, and 3 s later the PSS of all processes and what of the
machine's memory is gone, the ring left aside. Ours starts its daemon, "daemon runs" finds one. All modules are compiled
before, as an installation leaves them.

Cases
    small     a small dataset
    array     it holds an array of so many bytes
    texts     it holds a list of so many texts
    imports   a small one, but the script has imported packages that start threads
    epochs    `dataset.epoch = e` before each epoch, with 200 MB, and with the list of texts: milliseconds an epoch
    rerun     the same script again, from its beginning: a ring of the run before is there
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import torch
from prefetchd_demo.machine import describe_machine
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import own_daemon

OURS, RUNS, DATALOADER = "prefetchd", "daemon runs", "DataLoader"
CASES = ("small", "array", "texts", "imports", "epochs", "rerun")
SETTLE_S = 3.0
EPOCHS, EPOCH_SAMPLES, EPOCH_ARRAY_BYTES = 6, 640, 200_000_000
SOON_BATCHES = 100
MARK = "PREFETCHD_SOCKET"
MEASURES = {
    "constructor_ms": "constructor, ms",
    "first_ms": "first batch, ms",
    "cpu_ms": "CPU until then, ms",
    "epoch_ms": "an epoch after the first, ms",
    "soon_ms": f"the {SOON_BATCHES} batches after the first, ms",
    "pss_mb": "PSS without the ring, MB",
    "taken_mb": "taken of the machine's memory, without the ring, MB",
}


class Rows(Dataset[torch.Tensor]):
    """Holds small pictures, and an array and a list of texts that are only held."""

    epoch = 0

    def __init__(self, array_bytes: int, texts: int, length: int = 10_000) -> None:
        self.array = np.ones(array_bytes, np.uint8)
        self.texts = [f"/data/images/train/{number:09d}.jpg" for number in range(texts)]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.length:
            raise IndexError(index)
        return torch.full((3, 64, 64), float(index + self.epoch))


def script(arguments: argparse.Namespace) -> None:
    """Runs what a user would run; prints what was measured."""
    for each in arguments.imports:
        importlib.import_module(each)
    if arguments.run == DATALOADER:
        kind: Any = DataLoader
    else:
        from prefetchd_client import PrefetchLoader as kind  # noqa: N813 - in the place of DataLoader
    by_epochs = "epochs" in arguments.cases
    dataset = Rows(arguments.array, arguments.texts, EPOCH_SAMPLES if by_epochs else 10_000)
    # After the dataset, before the loader: what the loader takes is the difference.
    available = psutil.virtual_memory().available
    cpu_s = -others_cpu_s() - time.process_time()
    began_s = time.perf_counter()
    made = kind(dataset, batch_size=32, num_workers=2)
    found = {"constructor_ms": (time.perf_counter() - began_s) * 1000}
    batches = iter(made)
    next(batches)
    found["first_ms"] = (time.perf_counter() - began_s) * 1000
    cpu_s += time.process_time() + others_cpu_s()
    found["cpu_ms"] = cpu_s * 1000
    if by_epochs:
        found["epoch_ms"] = an_epoch_ms(dataset, made, batches)
    elif "rerun" in arguments.cases:
        soon_s = time.perf_counter()
        for _ in range(SOON_BATCHES):
            next(batches)
        found["soon_ms"] = (time.perf_counter() - soon_s) * 1000
    else:
        time.sleep(SETTLE_S)
        pss_bytes, ring_bytes = memory_bytes()
        taken_bytes = available - psutil.virtual_memory().available - ring_bytes
        found |= {"pss_mb": pss_bytes / 1e6, "taken_mb": taken_bytes / 1e6}
    print(json.dumps(found), flush=True)
    del batches
    if arguments.run != DATALOADER:
        made.close()


def an_epoch_ms(dataset: Rows, made: Any, batches: Iterator[Any]) -> float:
    """Returns the median time of the epochs after the first, whose rest `batches` are."""
    for _ in batches:
        pass
    durations = []
    for epoch in range(1, EPOCHS):
        began_s = time.perf_counter()
        dataset.epoch = epoch
        values = [float(batch[0, 0, 0, 0]) for batch in made]
        assert values[1] - values[0] == 32, values[:2]
        assert values[0] == epoch, "of the epoch before"
        durations.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(durations)


def ours() -> list[str]:
    """Returns the directories in /proc of all processes of this run: each has its socket's name in its environment. Of
    others than were there at the first call only those that began later than this process are looked at: that takes so
    little time that workers have not gone on meanwhile."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if _former and int(name) < os.getpid() and name not in _former:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environment:
                if mark in environment.read().split(b"\0"):
                    found.append(f"/proc/{name}")
        except OSError:
            continue
    _former.update(each.rpartition("/")[2] for each in found)
    return found


_former: set[str] = set()


def others_cpu_s() -> float:
    """Returns the CPU time of the other processes of this run, also of those that have ended in it."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = reaped.ru_utime + reaped.ru_stime
    found = [each for each in ours() if each != f"/proc/{os.getpid()}"]
    for each in found:
        try:
            for task in os.listdir(f"{each}/task"):
                total += int(_read(f"{each}/task/{task}/schedstat").split()[0]) / 1e9
            total += _ticks_s(each, 15)
        except OSError:
            continue
    # Those that nobody has waited for have no environment any more.
    for name in filter(lambda each: each.isdigit() and int(each) > os.getpid(), os.listdir("/proc")):
        try:
            state, parent = _fields(f"/proc/{name}")[2:4]
            total += _ticks_s(f"/proc/{name}", 13) if state == "Z" and parent == str(os.getpid()) else 0.0
        except OSError:
            continue
    return total


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _fields(process: str) -> list[str]:
    """Returns the fields of proc_pid_stat(5), counted from 0."""
    before, _, after = _read(f"{process}/stat").rpartition(")")
    return [*before.split(" (", 1), *after.split()]


def _ticks_s(process: str, at: int) -> float:
    """Returns the user and system time that stand there: 13 the process's own, 15 its reaped children's."""
    return sum(map(int, _fields(process)[at : at + 2])) / os.sysconf("SC_CLK_TCK")


def memory_bytes() -> tuple[int, int]:
    """Returns the PSS of all processes of this run without the ring's pages, and what the ring takes."""
    pss, rings = 0, set()
    for each in ours():
        try:
            text = _read(f"{each}/smaps")
        except OSError:
            continue
        is_ring = False
        for line in text.splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                path = line[73:] if len(line) > 73 else ""
                is_ring = "prefetchd-" in path and "ring" in path
                if is_ring:
                    rings.add(path.strip())
            elif line.startswith("Pss:") and not is_ring:
                pss += int(line.split()[1]) * 1024
    return pss, sum(os.stat(path).st_blocks * 512 for path in rings if os.path.exists(path))


def run(loader: str, arguments: list[str], *, again: bool = False) -> dict[str, float]:
    """Returns what the script measured; with `again` its second run beside one daemon."""
    command = [sys.executable, "-m", "benchmarks.first_batch", "--run", loader, *arguments]
    if loader == RUNS:
        with own_daemon():
            if again:
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                time.sleep(SETTLE_S)
            return _told(command, dict(os.environ))
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as directory:
        environment = os.environ | {MARK: f"{directory}/d.sock", "XDG_STATE_HOME": directory}
        found = _told(command, environment)
        if loader == OURS:
            stop = [sys.executable, "-m", "prefetchd", "stop"]
            subprocess.run(stop, check=False, env=environment, stdout=subprocess.DEVNULL)
        return found


def _told(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
    )
    return found


def compare(title: str, rounds: int, arguments: list[str], *, again: bool = False) -> None:
    """Runs the contestants in turn, round after round, and prints medians, how they compare with DataLoader, and the
    ranges."""
    names = (RUNS, DATALOADER) if again else (OURS, RUNS, DATALOADER)
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name, found in figures.items():
            found.append(run(name, arguments, again=again))
    print(f"\n{title}", flush=True)
    for measure in figures[DATALOADER][0]:
        values = {name: [each[measure] for each in found] for name, found in figures.items()}
        of = statistics.median(values[DATALOADER])
        print(f"  {MEASURES[measure]}")
        for name, several in values.items():
            median = statistics.median(several)
            compared = f"   {median / of:7.2f} of DataLoader's   {median - of:+8.1f}" if name != DATALOADER else ""
            print(f"    {name:12} {median:9.1f}   ({min(several):.1f} to {max(several):.1f}){compared}", flush=True)


def compile_all() -> None:
    """Compiles all modules, as pip does; where nobody may write bytecode, each process would compile them anew."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in ("prefetchd", "prefetchd_client", "benchmarks"):
        for path in importlib.import_module(package).__path__:
            compileall.compile_dir(path, quiet=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--array", type=int, default=2 << 30, metavar="BYTES")
    parser.add_argument("--texts", type=int, default=5_000_000, metavar="N")
    parser.add_argument("--imports", nargs="*", default=["pyarrow", "pandas", "datasets"], metavar="MODULE")
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        script(arguments)
        return
    compile_all()
    print(describe_machine())
    few = max(3, arguments.rounds // 2)

    def given(case: str, array: int = 0, texts: int = 0, imports: tuple[str, ...] = ()) -> list[str]:
        return ["--cases", case, "--array", str(array), "--texts", str(texts), "--imports", *imports]

    there = tuple(each for each in arguments.imports if importlib.util.find_spec(each) is not None)
    for case in arguments.cases:
        if case == "small":
            compare("a small dataset", arguments.rounds, given(case))
        elif case == "array":
            compare(f"a dataset that holds {arguments.array / 1e9:.1f} GB", few, given(case, arguments.array))
        elif case == "texts":
            compare(f"a dataset that holds {arguments.texts:,} texts", few, given(case, texts=arguments.texts))
        elif case == "imports" and there:
            compare(f"after import {', '.join(there)}", few, given(case, imports=there))
        elif case == "epochs":
            compare("dataset.epoch = e, 200 MB", few, given(case, EPOCH_ARRAY_BYTES))
            compare(f"dataset.epoch = e, {arguments.texts:,} texts", few, given(case, texts=arguments.texts))
        elif case == "rerun":
            compare("a rerun from the beginning", arguments.rounds, given(case), again=True)


if __name__ == "__main__":
    main()
