"""Batches that are a TensorDict or a tensorclass arrive as such, over the slot's own memory."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

pytest.importorskip("tensordict")
from tensordict import TensorDict

from tests.compatibility.tensorclasses import Scene


def as_it_is(batch):
    return batch


class Gathered(Dataset):
    """Gives a batch in one go, as tensordict's own recipe does."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]

    def __getitems__(self, indices):
        return self.data[torch.tensor(indices)]


def is_in_a_ring(address):
    """Whether that address of this process is in a mapping of a ring."""
    with open("/proc/self/maps") as file:
        for line in file:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return "-ring-" in line
    return False


def scenes():
    names = list(Scene.__dataclass_fields__)
    return Scene(**{name: torch.arange(24.0).view(12, 2) for name in names}, batch_size=[12])


@pytest.mark.parametrize("kind", ["TensorDict", "memory-mapped", "tensorclass"])
def test_they_arrive_without_a_copy(shared_daemon, tmp_path, kind):
    data = (
        scenes() if kind == "tensorclass" else TensorDict({"a": torch.arange(12), "b": {"c": torch.rand(12, 3)}}, [12])
    )
    if kind == "memory-mapped":
        data.memmap(str(tmp_path / "data"))
        data = TensorDict.load_memmap(str(tmp_path / "data"))
    with PrefetchLoader(
        Gathered(data), batch_size=4, buffer=4, collate_fn=as_it_is, deterministic=False, stream=f"scenes {kind}"
    ) as loader:
        iterator = iter(loader)
        first = next(iterator)
        assert type(first) is type(data[torch.tensor([0])])
        assert first.batch_size == torch.Size([4])
        assert (first == data[torch.arange(4)]).all()
        fields = Scene.__dataclass_fields__
        leaves = [getattr(first, name) for name in fields] if kind == "tensorclass" else list(first.values(True, True))
        assert all(type(leaf) is torch.Tensor for leaf in leaves)
        assert all(is_in_a_ring(leaf.data_ptr()) for leaf in leaves)
        # Whoever holds one of its tensors holds the batch.
        kept = leaves[0]
        expected = kept.clone()
        del first, leaves
        assert loader.stats()["held"] == 1
        for batch in iterator:
            del batch
        for _ in range(4):
            for batch in loader:
                del batch
        assert torch.equal(kept, expected)
        assert loader.stats()["held"] == 1
        assert loader.stats()["private_copies"] == 0
