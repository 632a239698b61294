"""What does it cost to look for the number of workers? The trainer's pace meanwhile, and the daemon's CPU.

python -m benchmarks.tuning_cost [--seconds S] [--rounds N]

One lock for all samples: no number of workers helps, and each trial is in vain. The trainer runs from its first batch
on, in turn with the tuner and without it. In the second work the trainer is the limit, and nothing is ever tried.
"""

from __future__ import annotations

import argparse
import fcntl
import tempfile
import time

import psutil
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from benchmarks.harness import endless, interleave, own_daemon, report
from prefetchd.cli.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths

BATCH = 8
BUFFER = 16
"""It is full soon: then the daemon does what it does for ever."""
SAMPLES = 1 << 20
LOCKED_S = 0.005
STEP_S = 0.05


class Locked(Dataset[torch.Tensor]):
    """Gives samples for which all workers wait in one line, if there is a `lock`, the path of a file."""

    def __init__(self, lock: str) -> None:
        self.lock = lock

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.lock:
            with open(self.lock, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(LOCKED_S)
        return torch.tensor(index)


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.NamedTemporaryFile() as lock:
        for name, path, step_s in (("one lock for all", lock.name, 0.0), ("the trainer is the limit", "", STEP_S)):
            cpu: dict[str, list[float]] = {"tuned": [], "as it is": []}

            def run(kind: str, path: str = path, step_s: float = step_s, cpu: dict[str, list[float]] = cpu) -> float:
                pace, used = _run(path, step_s, arguments.seconds, autotune=kind == "tuned")
                cpu[kind].append(100 * used)
                return pace

            figures = interleave(arguments.rounds, {kind: lambda kind=kind: run(kind) for kind in cpu})
            report(f"{name}: the trainer's batches", "batches/s", figures, "tuned", {"as it is": 0.97})
            for kind, used in cpu.items():
                print(f"  the daemon's CPU, {kind}: {', '.join(f'{each:.2f}' for each in used)} % of one")


def _run(lock: str, step_s: float, seconds: float, *, autotune: bool) -> tuple[float, float]:
    """Returns the trainer's batches a second, and the share of a CPU that the daemon uses."""
    with (
        own_daemon(autotune=autotune) as directory,
        PrefetchLoader(Locked(lock), batch_size=BATCH, buffer=BUFFER) as loader,
    ):
        batches = endless(loader)
        next(batches)
        snapshot = read_report(runtime_paths(f"{directory}/d.sock")).snapshot
        assert snapshot is not None
        daemon = psutil.Process(snapshot["daemon"]["pid"])
        before_s, began_s, taken = sum(daemon.cpu_times()[:2]), time.perf_counter(), 0
        while time.perf_counter() < began_s + seconds:
            next(batches)
            taken += 1
            time.sleep(step_s)
        over_s = time.perf_counter() - began_s
        return taken / over_s, (sum(daemon.cpu_times()[:2]) - before_s) / over_s


if __name__ == "__main__":
    main()
