"""What is left for loading beside another job? As many processes that only compute as there are CPUs, in a session of
their own, and samples of 5 ms of CPU each.

python -m benchmarks.busy [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch

BATCH = 16
BATCHES_A_ROUND = 40
WORKERS = 2
RING_BATCHES = 8
BLOCK_BYTES = 1 << 20


class Hashed(Dataset[torch.Tensor]):
    """Computes for some milliseconds, and waits for nothing."""

    def __init__(self) -> None:
        self.block = bytes(BLOCK_BYTES)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(8):
            hashlib.sha256(self.block).digest()
        return torch.tensor([index])


@contextlib.contextmanager
def another_job() -> Iterator[None]:
    """Runs what computes on all CPUs, as somebody else's batch job does."""
    program = (
        "import os\n"
        f"for _ in range({len(os.sched_getaffinity(0)) - 1}):\n"
        "    if not os.fork(): break\n"
        "print(flush=True)\n"
        "while os.getppid() != 1: pass\n"
    )
    job = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
    try:
        assert job.stdout is not None
        job.stdout.readline()
        yield
    finally:
        os.killpg(job.pid, 9)
        job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS}
    with own_daemon(), PrefetchLoader(Hashed(), buffer=RING_BATCHES, **common) as ours:
        theirs = DataLoader(Hashed(), persistent_workers=True, **common)

        def rate(loader: DataLoader[Any]) -> float:
            batches = endless(loader)
            with another_job():
                # The other's workers stand still meanwhile: its buffer is full.
                for _ in itertools.islice(batches, RING_BATCHES + 1):
                    pass
                elapsed = stopwatch()
                for batch in itertools.islice(batches, BATCHES_A_ROUND):
                    del batch
                return BATCHES_A_ROUND * BATCH / elapsed()

        figures = interleave(rounds, {"prefetchd": lambda: rate(ours), "DataLoader": lambda: rate(theirs)})
    report("busy", "samples/s", figures, "prefetchd", {"DataLoader": 1.0})


if __name__ == "__main__":
    main()
