"""Transformed is a dataset whose samples go through a transform: what PrefetchLoader(dataset, transform=...) loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from prefetchd.wire.errors import CallerError


class Transformed(Dataset[Any]):
    """Has the samples of `dataset`, each as `transform` makes it; random transforms draw under the sample's own
    seeds."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.transform(self.dataset[index])


def transformed(dataset: Any, transform: Callable[[Any], Any] | None) -> Any:
    """Returns `dataset` or, with a `transform`, the dataset of what that makes of its samples. Raises CallerError."""
    if transform is None:
        return dataset
    if not callable(transform):
        raise CallerError(f"transform={transform!r}; allowed: a function of one sample, or None")
    if isinstance(dataset, IterableDataset):
        raise CallerError("transform= with an IterableDataset; allowed: a dataset with __getitem__ (transform within)")
    return Transformed(dataset, transform)
