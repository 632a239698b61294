"""A trainer with lookback: it takes batches, writes into some of them, and waits to be killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

TAKEN, HELD, BATCH = 20, 2, 4


class Told(Dataset):
    """Random samples; the file `calls` has a line for each that was made."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int):
        fd = os.open(self.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{index}\n".encode())
        os.close(fd)
        return index, torch.rand(1000)

    def steps(self) -> list[int]:
        """The step of each sample that was made, in order."""
        return [int(line) // BATCH for line in self.calls.read_text().split()]


def loader(calls: Path, **options) -> PrefetchLoader:
    return PrefetchLoader(Told(calls), batch_size=BATCH, seed=5, buffer=24, lookback=8, stream="behind", **options)


def main(calls: str, *written: str) -> None:
    kept = []
    iterator = iter(loader(Path(calls)))
    for step in range(TAKEN):
        batch = next(iterator)
        if str(step) in written:
            batch[1].zero_()
        kept = [*kept, batch][-HELD:]
    print("taken", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    # The dataset's class must be the same one as in the test.
    from tests.scenario import lookback_trainer

    lookback_trainer.main(*sys.argv[1:])
