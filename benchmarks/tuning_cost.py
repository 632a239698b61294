"""What does it cost to look for the number of workers? The trainer's pace meanwhile, and the daemon's CPU.

python -m benchmarks.tuning_cost [--seconds S] [--rounds N]

One lock for all samples: no number of workers helps, and each trial is in vain. The trainer runs from its first batch
on, in turn with the tuner and without it. In the second work the trainer is the limit, and nothing is ever tried. What
the tuner itself uses is counted in a daemon that does nothing else differently: the daemon's whole use differs by more
than that from run to run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from benchmarks.harness import endless, interleave, own_daemon, report
from prefetchd.status.snapshot import read_report
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
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        _count(arguments.count)
        return
    with tempfile.NamedTemporaryFile() as lock:
        for name, path, step_s in (("one lock for all", lock.name, 0.0), ("the trainer is the limit", "", STEP_S)):
            cpu: dict[str, list[float]] = {"tuned": [], "as it is": []}

            def run(kind: str, path: str = path, step_s: float = step_s, cpu: dict[str, list[float]] = cpu) -> float:
                pace, used = _run(path, step_s, arguments.seconds, autotune=kind == "tuned")
                cpu[kind].append(100 * used)
                return pace

            figures = interleave(arguments.rounds, {kind: partial(run, kind) for kind in cpu})
            report(f"{name}: the trainer's batches", "batches/s", figures, "tuned", {"as it is": 0.97})
            for kind, used in cpu.items():
                print(f"  the daemon's CPU, {kind}: {', '.join(f'{each:.2f}' for each in used)} % of one")
            with _counting_daemon() as count:
                _drive(path, step_s, arguments.seconds, count.parent, buffer=None)
                print(f"  the tuner's: {100 * float(count.read_text()):.2f} % of one, to stay under 0.2")


def _run(lock: str, step_s: float, seconds: float, *, autotune: bool) -> tuple[float, float]:
    """Returns the trainer's batches a second, and the share of a CPU that the daemon uses."""
    with own_daemon(autotune=autotune) as directory:
        return _drive(lock, step_s, seconds, directory)


def _drive(
    lock: str, step_s: float, seconds: float, directory: Path, buffer: int | None = BUFFER
) -> tuple[float, float]:
    with PrefetchLoader(Locked(lock), batch_size=BATCH, buffer=buffer) as loader:
        batches = endless(loader)
        next(batches)
        snapshot = read_report(runtime_paths(directory / "d.sock")).snapshot
        assert snapshot is not None
        daemon = psutil.Process(snapshot["daemon"]["pid"])
        before_s, began_s, taken = sum(daemon.cpu_times()[:2]), time.perf_counter(), 0
        while time.perf_counter() < began_s + seconds:
            next(batches)
            taken += 1
            time.sleep(step_s)
        over_s = time.perf_counter() - began_s
        return taken / over_s, (sum(daemon.cpu_times()[:2]) - before_s) / over_s


@contextlib.contextmanager
def _counting_daemon() -> Iterator[Path]:
    """Runs a daemon that counts what tuning takes. Yields the file that has the share of a CPU by now."""
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as directory:
        os.environ["PREFETCHD_SOCKET"] = f"{directory}/d.sock"
        os.environ["XDG_STATE_HOME"] = directory
        count = Path(directory, "share")
        command = [sys.executable, "-m", "benchmarks.tuning_cost", "--count", str(count)]
        daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not Path(directory, "d.sock").exists():
                assert daemon.poll() is None, "the daemon has ended"
                time.sleep(0.1)
            yield count
        finally:
            daemon.terminate()
            daemon.wait()


def _count(path: Path) -> None:
    """Runs a daemon, and writes which share of a CPU it uses for tuning, from the moment on that it has a stream."""
    from prefetchd.cli.main import main as run
    from prefetchd.daemon.shell.autotune import Autotune

    look, used_s, since_s = Autotune.look, 0.0, 0.0

    def counted(self: Autotune, now_s: float) -> None:
        nonlocal used_s, since_s
        before_s = time.thread_time()
        look(self, now_s)
        if self._engine.streams:
            used_s += time.thread_time() - before_s
            if since_s:
                path.write_text(str(used_s / (now_s - since_s)))
            since_s = since_s or now_s

    Autotune.look = counted  # type: ignore[method-assign]
    sys.argv = ["prefetchd", "run", "--autotune"]
    run()


if __name__ == "__main__":
    main()
