"""A script that is run again finds its first batches, whether it goes on or begins again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from tests.scenario.datasets import equal
from tests.scenario.oracle import epoch_batches
from tests.scenario.samplers import Remembering
from tests.scenario.waiting import fills_no_more, stream_when

BATCH, SLOTS, TAKEN, SAMPLES = 4, 16, 21, 120
EPOCH = SAMPLES // BATCH

TRAINER = """
import os, sys
import torch
from prefetchd_client import PrefetchLoader
from tests.scenario.test_reruns import BATCH, EPOCH, ORDERS, SLOTS, Noted

if __name__ == "__main__":
    calls, taken, step, ends, order = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:]
    loader = PrefetchLoader(Noted(calls), seed=5, num_workers=2, buffer=SLOTS, **ORDERS[order]())
    if step:
        loader.load_state_dict({**loader.state_dict(), "step": step})
    found = []
    while len(found) < taken:
        # Whole epochs, and then a part of one.
        iterator = iter(loader)
        left = min(EPOCH, taken - len(found))
        found += [[each.clone() for each in next(iterator)] for _ in range(left)]
        if left == EPOCH:
            assert next(iterator, None) is None
    # Before the end: what comes then is for the next run.
    made = [float(line) for line in open(calls)] if os.path.exists(calls) else []
    torch.save((found, made), calls + ".found")
    if ends == "killed":
        os.kill(os.getpid(), 9)
"""


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


NAMED = "again"
"""Whoever names its stream waits for what there is of it, however slow the machine is just now."""

ORDERS = {
    "shuffle": lambda: {"batch_size": BATCH, "shuffle": True},
    "generator": lambda: {"batch_size": BATCH, "shuffle": True, "generator": generator(), "stream": NAMED},
    "sampler": lambda: {"batch_size": BATCH, "sampler": Remembering(SAMPLES), "stream": NAMED},
    "batch_sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(SAMPLES), generator=generator()), BATCH, False),
        "stream": NAMED,
    },
}
"""How the script makes its loader, each time that it is run."""


class Noted:
    """SAMPLES samples; each one that is made leaves what it has drawn in the file `calls`."""

    def __init__(self, calls: str) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.rand(3)
        with open(self.calls, "a") as calls:
            calls.write(f"{float(drawn[0])}\n")
        return torch.tensor(index), drawn


def run(daemon, calls: Path, taken: int, first: int = 0, ends: str = "in order", order: str = "shuffle"):
    """The batches that a trainer took, and what was drawn in the samples that were made by then."""
    command = [sys.executable, "-c", TRAINER, str(calls), str(taken), str(first), ends, order]
    done = subprocess.run(command, env=daemon.environment, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == (-9 if ends == "killed" else 0)
    return torch.load(f"{calls}.found")


def is_left(stream) -> bool:
    """Nothing more comes of what its trainer has left: what has made it has ended, or does nothing."""
    return bool(fills_no_more(stream) and stream["ring"]["ready"] == SLOTS)


@pytest.mark.parametrize("ends", ["in order", "killed"])
@pytest.mark.parametrize("first", [0, TAKEN], ids=["begins again", "goes on"])
def test_the_next_run_finds_its_first_half_ring(daemon, tmp_path, ends, first):
    daemon.start()
    calls = tmp_path / "calls"
    run(daemon, calls, TAKEN, ends=ends)
    stream_when(daemon, "interactive:0", is_left, "both halves are ready")
    calls.unlink()
    expected = epoch_batches(Noted(os.devnull), 0, batch_size=BATCH, seed=5, shuffle=True)
    found, made = run(daemon, calls, SLOTS // 2, first)
    assert equal(found, expected[first : first + SLOTS // 2])
    assert not {*made} & {float(drawn[0]) for batch in found for drawn in batch[1]}


@pytest.mark.parametrize("ends", ["in order", pytest.param("killed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", [name for name in ORDERS if name != "shuffle"])
def test_so_it_does_where_only_a_sampler_knows_the_order(daemon, tmp_path, order, ends):
    """The planner has gone on to a later epoch by then; what it has told of the beginning is kept."""
    daemon.start()
    calls = tmp_path / "calls"
    expected, _ = run(daemon, calls, EPOCH + TAKEN, ends=ends, order=order)
    stream_when(daemon, NAMED, is_left, "both halves are ready")
    calls.unlink()
    found, made = run(daemon, calls, SLOTS // 2, order=order)
    assert equal(found, expected[: SLOTS // 2])
    assert not {*made} & {float(drawn[0]) for batch in found for drawn in batch[1]}
