"""Texts of different lengths: named tuples as samples, padded to the longest of their batch, and all that an article
about datasets shows: a plain list as dataset, ConcatDataset, random_split, drop_last.

    python -m examples.texts [--loader torch] [--epochs N]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from prefetchd_client import PrefetchLoader
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, random_split

WORDS = 5000
LOADERS: dict[str, type[DataLoader[Any]]] = {"prefetchd": PrefetchLoader, "torch": DataLoader}


class Text(NamedTuple):
    """`source`: (file, line), as it came."""

    tokens: torch.Tensor
    label: int
    source: tuple[str, int]


class Batch(NamedTuple):
    """Padded with 0; `lengths` tells up to where."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    labels: torch.Tensor
    sources: list[tuple[str, int]]


class Texts(Dataset[Text]):
    """Lines of text, split and looked up at each access."""

    def __init__(self, file: str, count: int, shortest: int = 20, longest: int = 400) -> None:
        chance = random.Random(file)
        words = [f"w{number}" for number in range(1, WORDS)]
        lengths = [chance.randint(shortest, longest) for _ in range(count)]
        self.file = file
        self.lines = [" ".join(chance.choices(words, k=length)) for length in lengths]
        self.numbers = {word: number for number, word in enumerate(words, 1)}

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Text:
        words = self.lines[index].split()
        return Text(torch.tensor([self.numbers[word] for word in words]), len(words) % 2, (self.file, index))


def padded(texts: Sequence[Text]) -> Batch:
    tokens = [text.tokens for text in texts]
    return Batch(
        pad_sequence(tokens, batch_first=True),
        torch.tensor([len(each) for each in tokens]),
        torch.tensor([text.label for text in texts]),
        [text.source for text in texts],
    )


def made_loaders(loader: type[DataLoader[Any]], count: int = 400) -> dict[str, DataLoader[Any]]:
    """Training on one part of two files, validation on the other, and a list of named tuples as it is."""
    both: Dataset[Text] = ConcatDataset([Texts("news", count), Texts("mail", count // 2)])
    training, validation = random_split(both, [0.8, 0.2], torch.Generator().manual_seed(1))
    # A generator of its own: the order is DataLoader's, sample by sample.
    shuffled = {"shuffle": True, "generator": torch.Generator().manual_seed(2)}
    plain = [Text(torch.full((3,), number), number, ("list", number)) for number in range(50)]
    return {
        "training": loader(training, batch_size=16, num_workers=2, collate_fn=padded, drop_last=True, **shuffled),
        "validation": loader(validation, batch_size=16, num_workers=2, collate_fn=padded),
        "list": loader(plain, batch_size=8),
    }


def train(loaders: dict[str, DataLoader[Any]], epochs: int) -> float:
    """The share of the validation's texts that a bag of words gets right."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(WORDS, 16, padding_idx=0), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    right = total = 0
    for _ in range(epochs):
        for batch in loaders["training"]:
            loss = torch.nn.functional.cross_entropy(model(batch.tokens), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for batch in loaders["validation"]:
                right += int((model(batch.tokens).argmax(1) == batch.labels).sum())
                total += len(batch.labels)
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--loader", choices=LOADERS, default="prefetchd")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    print(f"validation {train(made_loaders(LOADERS[arguments.loader]), arguments.epochs):.3f}")


if __name__ == "__main__":
    main()
