"""Data by ID, one file a sample, as a widely copied recipe has it: a partition, labels, two generators, a validation
inside of each epoch.

    python -m examples.by_id DIR [--loader torch] [--epochs N]

DIR gets its files if it has none.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

LOADERS: dict[str, type[DataLoader[Any]]] = {"prefetchd": PrefetchLoader, "torch": DataLoader}
PARAMS = {"batch_size": 64, "shuffle": True, "num_workers": 6}
MOST_EPOCHS = 100


class Dataset(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Characterizes a dataset for PyTorch"""

    def __init__(self, data: Path, list_ids: list[str], labels: dict[str, int]) -> None:
        self.data = data
        self.labels = labels
        self.list_ids = list_ids

    def __len__(self) -> int:
        return len(self.list_ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        ID = self.list_ids[index]  # noqa: N806
        return torch.load(f"{self.data}/{ID}.pt"), self.labels[ID]


def prepared(data: Path, count: int = 400) -> tuple[dict[str, list[str]], dict[str, int]]:
    """(partition, labels); writes what is not there."""
    data.mkdir(parents=True, exist_ok=True)
    ids = [f"id-{number}" for number in range(1, count + 1)]
    generator = torch.Generator().manual_seed(0)
    for number, each in enumerate(ids):
        sample = torch.randn(8, 8, generator=generator) + number % 2
        if not (data / f"{each}.pt").exists():
            torch.save(sample, data / f"{each}.pt")
    labels = {each: number % 2 for number, each in enumerate(ids)}
    return {"train": ids[: count * 3 // 4], "validation": ids[count * 3 // 4 :]}, labels


def made_loaders(loader: type[DataLoader[Any]], data: Path, params: dict[str, Any] = PARAMS) -> dict[str, Any]:
    partition, labels = prepared(data)
    generators = {part: torch.Generator().manual_seed(number) for number, part in enumerate(partition)}
    return {
        part: loader(Dataset(data, ids, labels), generator=generators[part], **params)
        for part, ids in partition.items()
    }


def train(loaders: dict[str, Any], epochs: int) -> float:
    """The share of the validation's samples that come out right in the last epoch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    share = 0.0
    for _ in range(epochs):
        for local_batch, local_labels in loaders["train"]:
            loss = torch.nn.functional.cross_entropy(model(local_batch), local_labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.set_grad_enabled(False):
            right = [model(local_batch).argmax(1) == its for local_batch, its in loaders["validation"]]
            share = float(torch.cat(right).float().mean())
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--loader", choices=LOADERS, default="prefetchd")
    parser.add_argument("--epochs", type=int, default=MOST_EPOCHS)
    arguments = parser.parse_args()
    share = train(made_loaders(LOADERS[arguments.loader], arguments.data), arguments.epochs)
    print(f"validation {share:.3f}")


if __name__ == "__main__":
    main()
