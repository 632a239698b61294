"""How many batches a second does the hand-off carry? 256x3x224x224 out of 2 GiB, shuffled, 2 workers.

    python -m benchmarks.handoff [--dtype uint8|float32] [--rounds N]

The consumer reads a byte of every page, and takes many times more batches than the ring holds, so that what was ready
at the start does not count. What two processes can copy into resident memory and hand to nobody is shown beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from benchmarks.bare_loops import copies_a_second
from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch

BATCH = 256
SAMPLE = (3, 224, 224)
SOURCE_BYTES = 2 << 30
RING_BATCHES = 8
SECONDS_A_ROUND = 6.0
COPIED_BATCHES = 500


class Source(Dataset[torch.Tensor]):
    """Holds samples that lie ready in memory."""

    def __init__(self, dtype: torch.dtype) -> None:
        samples = SOURCE_BYTES // (dtype.itemsize * SAMPLE[0] * SAMPLE[1] * SAMPLE[2])
        self.data = torch.empty(samples, *SAMPLE, dtype=dtype)
        self.data.view(torch.uint8).random_(0, 256)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.data[index]


def batches_a_second(batches: Iterator[torch.Tensor]) -> float:
    """Takes batches for SECONDS_A_ROUND, each read page by page, and returns their rate."""
    for _ in range(RING_BATCHES + 2):
        read(next(batches))
    elapsed = stopwatch()
    count = 0
    while elapsed() < SECONDS_A_ROUND:
        read(next(batches))
        count += 1
    return count / elapsed()


def read(batch: torch.Tensor) -> int:
    return int(batch.view(torch.uint8).view(-1)[::4096].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtype", choices=["uint8", "float32"], action="append")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.dtype or ["uint8", "float32"]:
        dataset = Source(getattr(torch, name))
        common: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "drop_last": True, "num_workers": 2}
        with own_daemon(workers=2), PrefetchLoader(dataset, buffer=RING_BATCHES, **common) as ours:
            theirs = DataLoader(dataset, persistent_workers=True, **common)
            streams = {"prefetchd": endless(ours), "DataLoader": endless(theirs)}
            for stream in streams.values():
                batches_a_second(stream)  # workers start, pages are touched for the first time
            runs = {each: lambda stream=stream: batches_a_second(stream) for each, stream in streams.items()}
            runs["two bare copying loops"] = lambda data=dataset.data: copies_a_second(data, BATCH, 2, COPIED_BATCHES)
            figures = interleave(arguments.rounds, runs)
            del runs, streams, theirs
        report(
            f"handoff, {name}", "batches/s", figures, "prefetchd", {"DataLoader": 10.0, "two bare copying loops": None}
        )


if __name__ == "__main__":
    main()
