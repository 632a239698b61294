"""A ring of which nobody has said how deep it is to be becomes as deep as its trainer's bursts need."""

from __future__ import annotations

import time

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from tests.scenario.waiting import ring_when

BURST = 60
ROW_BYTES = 250_000


class Slow(Dataset):
    """Two workers make 60 batches of 2 MB a second."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((ROW_BYTES,), index % 256, dtype=torch.uint8)


def bursts(batches, count: int) -> list[float]:
    """Takes so many bursts, with more time between them than workers need for one. Returns how long each took."""
    found = []
    for _ in range(count):
        began_s = time.monotonic()
        for _ in range(BURST):
            next(batches)
        found.append(time.monotonic() - began_s)
        time.sleep(1.5)
    return found


def test_bursts_no_longer_wait_once_the_ring_bridges_them(daemon):
    # Of these the ring has half at first: 24 batches, whose memory is reserved step by step.
    daemon.start("--autotune", "--memory", "100MB")
    with PrefetchLoader(Slow(), batch_size=8, stream="bursts", num_workers=2, buffer=None) as loader:
        batches = iter(loader)
        next(batches)
        found = ring_when(daemon, "bursts", lambda ring: ring["slots"] >= 24, "a whole ring")
        first = found["ring"]["slots"]
        assert first == 24
        ring_when(daemon, "bursts", lambda ring: ring["ready"] >= first - 1, "a full ring")
        (before,) = bursts(batches, 1)
        found = ring_when(daemon, "bursts", lambda ring: ring["slots"] > first, "a deeper ring")
        assert found["buffer_tuned"]
        assert found["tuning"][0]["batches"] > found["tuning"][0]["before"]
        assert found["tuning"][0]["workers"] is None
        # Until it is full for the first time there is nothing to be had from it.
        assert min(bursts(batches, 4)[1:]) < 0.7 * before
