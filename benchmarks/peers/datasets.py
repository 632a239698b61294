"""This module has the datasets in the way that torch's users write them: contestants that take such ones share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.peers.feeds import CROP, MEAN, PREPARED_SIDE, STD, VALIDATED, Data


def picture_transform(feed: str) -> Callable[[Any], torch.Tensor]:
    """Returns what makes a sample of a decoded PIL image."""
    if feed == "jpeg-validation":
        steps: list[Any] = [transforms.Resize(PREPARED_SIDE), transforms.CenterCrop(CROP), transforms.PILToTensor()]
    else:
        steps = [transforms.RandomResizedCrop(CROP), transforms.RandomHorizontalFlip()]
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)] if feed == "jpeg-floats" else []
        steps += [transforms.PILToTensor()] if feed == "jpeg-bytes" else []
    return transforms.Compose(steps)


def tensor_transform(feed: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns the same for an image that is decoded to a tensor of 3 x height x width bytes."""
    if feed == "jpeg-validation":
        return v2.Compose([v2.Resize(PREPARED_SIDE), v2.CenterCrop(CROP)])
    steps: list[Any] = [v2.RandomResizedCrop(CROP), v2.RandomHorizontalFlip()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)] if feed == "jpeg-floats" else []
    return v2.Compose(steps)


augmented = v2.Compose([v2.RandomCrop(CROP), v2.RandomHorizontalFlip()])
"""What is done to a prepared picture."""


class Prepared(Dataset[tuple[torch.Tensor, int]]):
    """Reads prepared pictures out of a file that is mapped."""

    def __init__(self, data: Data) -> None:
        self.pictures = np.load(data.prepared, mmap_mode="r")
        self.labels = np.load(data.labels).tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augmented(torch.from_numpy(self.pictures[index].copy())), self.labels[index]


class Tokens(Dataset[torch.Tensor]):
    """Reads rows of tokens out of a file that is mapped, and widens them."""

    def __init__(self, data: Data) -> None:
        self.rows = np.load(data.tokens, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[index].astype(np.int64))


def dataset_of(feed: str, data: Data) -> Dataset[Any]:
    """Returns the map-style dataset of a feed."""
    if feed == "prepared":
        return Prepared(data)
    if feed == "tokens":
        return Tokens(data)
    pictures = ImageFolder(str(data.pictures), picture_transform(feed))
    return Subset(pictures, VALIDATED) if feed == "jpeg-validation" else pictures
