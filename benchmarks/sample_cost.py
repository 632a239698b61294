"""What does a worker add to each sample? The CPU time of filling batches of 512 small samples in one process, less that
of [dataset[i] for i in rows] and one copy.

python -m benchmarks.sample_cost [--rounds N] [--piece ROWS]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from prefetchd_demo.machine import describe_machine
from torch.utils.data import Dataset

from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.fill import Filler
from prefetchd.workers.program import Program
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.state_readers import hook_state_readers

ROWS = 100_000
NUMBERS = 128
BATCH = 512
BATCHES_A_ROUND = 60
TO_REACH_US = 2.0

Sample = Any


class OneTensor(Dataset[Sample]):
    """Gives a row of 128 numbers as a tensor."""

    def __init__(self) -> None:
        self.array = np.arange(ROWS * NUMBERS).reshape(ROWS, NUMBERS)
        self.tensor = torch.from_numpy(self.array)
        self.into = [torch.empty(BATCH, NUMBERS, dtype=torch.int64)]

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Sample:
        return self.tensor[index]

    def collate(self, samples: list[Sample]) -> None:
        """Copies them into one batch, once, with as few calls as there can be."""
        torch.stack(samples, out=self.into[0])


class TensorAndNumbers(OneTensor):
    """Gives a row with an int and a float."""

    def __init__(self) -> None:
        super().__init__()
        self.into += [torch.empty(BATCH, dtype=torch.int64), torch.empty(BATCH, dtype=torch.float64)]

    def __getitem__(self, index: int) -> Sample:
        return self.tensor[index], index, 0.5

    def collate(self, samples: list[Sample]) -> None:
        rows, ints, floats = zip(*samples)
        torch.stack(rows, out=self.into[0])
        self.into[1][:] = torch.tensor(ints)
        self.into[2][:] = torch.tensor(floats)


class FourArrays(OneTensor):
    """Gives a dict of four numpy arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays = {name: np.empty((BATCH, *part.shape), part.dtype) for name, part in self[0].items()}

    def __getitem__(self, index: int) -> Sample:
        numbers = self.array[index]
        return {"whole": numbers, "first": numbers[:64], "rest": numbers[1:], "few": numbers[:8]}

    def collate(self, samples: list[Sample]) -> None:
        for name, into in self.arrays.items():
            np.stack([sample[name] for sample in samples], out=into)


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--piece", type=int, default=BATCH, metavar="ROWS", help="rows of a batch that a task has")
    arguments = parser.parse_args()
    # As in a worker's process.
    torch.set_num_threads(1)
    hook_state_readers()
    print(f"CPU time, us a sample, batches of {BATCH}; medians (lowest to highest) of {arguments.rounds} rounds")
    print(describe_machine())
    print(f"{'sample':26}{'a worker':>24}{'the bare loop':>24}{'added':>24}   to reach")
    for name, made in (
        ("one tensor", OneTensor),
        ("a tensor and two numbers", TensorAndNumbers),
        ("a dict of four arrays", FourArrays),
    ):
        _measure(name, made(), arguments.rounds, arguments.piece)


def _measure(name: str, dataset: OneTensor, rounds: int, piece: int) -> None:
    spec = StreamSpec("0" * 32, seed=5, order="shuffle", length=ROWS, batch_size=BATCH)
    filler = Filler(spec, Program(dataset, None, None), SampleSeeder(lazy=True))
    measured = filler.measure((0, 0), BATCH)
    filler.use_layout(measured.layout)
    slot = (ctypes.c_ubyte * measured.payload_bytes)()
    batches = [filler.plan.rows(0, step, 0, BATCH).indices.tolist() for step in range(BATCHES_A_ROUND)]

    def fill() -> None:
        for step in range(BATCHES_A_ROUND):
            for begin in range(0, BATCH, piece):
                filler.fill_rows((0, step), begin, min(BATCH, begin + piece), slot)

    def bare() -> None:
        for rows in batches:
            dataset.collate([dataset[index] for index in rows])

    ours, loops, added = [], [], []
    for _ in range(rounds):
        ours.append(_cpu_us(fill))
        loops.append(_cpu_us(bare))
        added.append(ours[-1] - loops[-1])
    print(f"{name:26}{_shown(ours)}{_shown(loops)}{_shown(added)}   {TO_REACH_US:.1f}")


def _cpu_us(work: Callable[[], None]) -> float:
    """Returns this process's CPU time of `work`, a sample."""
    began_s = time.process_time()
    work()
    return (time.process_time() - began_s) * 1e6 / (BATCHES_A_ROUND * BATCH)


def _shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})".rjust(24)


if __name__ == "__main__":
    main()
