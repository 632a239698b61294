"""What has a trainer whose samples cost nothing beside one whose samples are waited for?

    python -m benchmarks.two_trainers [--rounds N] [--seconds S]

Each trainer is a process of its own. A takes batches of 16 samples as fast as they come, and a sample sleeps for 20 ms;
B wants 5 batches a second, and its samples are numbers. Two workers each. B comes when A has had its first batch; its
clock begins when its imports are done. Ours on one daemon, without a bound of workers and with one of one busy worker;
B alone; and both with DataLoader.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import endless, interleave, own_daemon, report

OURS, BOUND, ALONE, DATALOADER = "prefetchd", "prefetchd --workers 1", "prefetchd, B alone", "DataLoader"
RATE = 5.0

# That workers are bound is meant.
SCRIPT = [sys.executable, "-W", "ignore::UserWarning", "-m", "benchmarks.two_trainers"]


class Waited(Dataset[int]):
    """Has samples of 20 ms."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index


class Cheap(Waited):
    """Has samples that cost nothing."""

    def __getitem__(self, index: int) -> int:
        return index


def loader_of(contestant: str, dataset: Dataset[int]) -> DataLoader[int]:
    if contestant == DATALOADER:
        return DataLoader(dataset, 16, num_workers=2)
    from prefetchd_client import PrefetchLoader

    return PrefetchLoader(dataset, 16, num_workers=2, buffer=64, stream=type(dataset).__name__)


def run_a(contestant: str) -> None:
    """Takes batches until it is killed; says when it has its first batch."""
    batches = endless(loader_of(contestant, Waited()))
    next(batches)
    print("begun", flush=True)
    for _ in batches:
        pass


def run_b(contestant: str, seconds: float) -> None:
    """Prints its first batch's time and its rate after that."""
    began_s = time.perf_counter()
    batches = endless(loader_of(contestant, Cheap()))
    next(batches)
    first_s = time.perf_counter() - began_s
    began_s = due_s = time.perf_counter()
    count = 0
    while time.perf_counter() < began_s + seconds:
        due_s += 1 / RATE
        time.sleep(max(0.0, due_s - time.perf_counter()))
        next(batches)
        count += 1
    took_s = time.perf_counter() - began_s
    print(json.dumps({"first_s": first_s, "batches_per_s": count / took_s}), flush=True)


@contextlib.contextmanager
def trainer_a(contestant: str) -> Iterator[None]:
    if contestant == ALONE:
        yield
        return
    command = [*SCRIPT, "--run-a", contestant]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def both(contestant: str, seconds: float) -> dict[str, Any]:
    """Returns what B has measured."""
    command = [*SCRIPT, "--run-b", contestant, "--seconds", str(seconds)]
    daemon = own_daemon(workers=1 if contestant == BOUND else None) if contestant != DATALOADER else None
    with daemon or contextlib.nullcontext(), trainer_a(contestant):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--run-a", help=argparse.SUPPRESS)
    parser.add_argument("--run-b", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_a:
        run_a(arguments.run_a)
    elif arguments.run_b:
        run_b(arguments.run_b, arguments.seconds)
    else:
        firsts: dict[str, list[float]] = {}

        def rate(contestant: str) -> float:
            found = both(contestant, arguments.seconds)
            firsts.setdefault(contestant, []).append(found["first_s"])
            return float(found["batches_per_s"])

        names = (OURS, BOUND, ALONE, DATALOADER)
        rates = interleave(arguments.rounds, {name: lambda name=name: rate(name) for name in names})  # type: ignore[misc]
        report("B's rate, of 5 batches/s that it wants", "batches/s", rates, OURS, {DATALOADER: 1.0, ALONE: 0.9})
        report("B's first batch", "s", firsts, OURS, {DATALOADER: None, ALONE: None})
        bound = {name: firsts[name] for name in (BOUND, ALONE)}
        report("B's first batch, one busy worker for both", "s", bound, BOUND, {ALONE: None})


if __name__ == "__main__":
    main()
