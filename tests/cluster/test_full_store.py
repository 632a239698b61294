"""What does not fit into a node's object store is carried all the same: Ray puts it on the node's disk."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import Dataset

from tests.cluster.ray_nodes import STORE_BYTES
from tests.cluster.test_remote_batches import loader, made_elsewhere

pytestmark = pytest.mark.timeout(300)

BATCH = 8
SAMPLE_BYTES = STORE_BYTES // BATCH + 1000
MOST_EPOCHS = 20


class Full(Dataset):
    """The dataset alone, and each batch alone, has more bytes than a store."""

    def __init__(self) -> None:
        self.values = torch.arange(STORE_BYTES + 1000).to(torch.uint8)

    def __len__(self) -> int:
        return 8 * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.1)
        return self.values[index].repeat(SAMPLE_BYTES)


def test_a_program_and_batches_that_are_larger_than_the_store_come(ray_daemon):
    with loader(Full(), shuffle=False, buffer=8) as loading:
        for _ in range(MOST_EPOCHS):
            for step, batch in enumerate(loading):
                assert batch.shape == (BATCH, SAMPLE_BYTES)
                rows = torch.arange(BATCH * step, BATCH * step + BATCH).to(torch.uint8)
                assert batch.equal(rows[:, None].expand_as(batch))
            if made_elsewhere(ray_daemon) >= 3:
                return
    pytest.fail(f"no batches from other machines in {MOST_EPOCHS} epochs")
