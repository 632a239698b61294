"""kind_of says what kind a loader is of: those that are made alike, again and again, are checked once."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

LoaderKind = tuple[Any, ...]


def kind_of(loader: DataLoader[Any]) -> LoaderKind:
    """Returns a key that is equal for loaders of one construction: of the same classes, functions and numbers, whatever
    objects they hold. It is hashable. Raises nothing: a length that is an error tells nothing."""
    collate = loader.collate_fn
    return (
        type(loader),
        type(loader.dataset),
        _length(loader.dataset),
        loader.batch_size,
        type(loader.sampler),
        type(loader.batch_sampler),
        loader.drop_last,
        loader.num_workers,
        loader.generator is None,
        (getattr(collate, "__module__", None), getattr(collate, "__qualname__", type(collate).__qualname__)),
    )


def _length(dataset: Any) -> int | None:
    if isinstance(dataset, IterableDataset):
        # Asking may take long, and costs nothing that tells more.
        return None
    try:
        return len(dataset)
    except Exception:
        return None
