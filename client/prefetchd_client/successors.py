"""Loaders that frameworks make anew from others, with a sampler of theirs: the successor gets the other's stream."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefetchd_client.loader import PrefetchLoader

# Living ones that nobody has iterated over.
_unused: weakref.WeakSet[PrefetchLoader] = weakref.WeakSet()


def await_successor(loader: PrefetchLoader) -> None:
    """The loader, of no sampler of its own, has a stream that nobody has used so far."""
    _unused.add(loader)


def is_used(loader: PrefetchLoader) -> None:
    """From now on its stream is its own."""
    _unused.discard(loader)


def predecessor_of(dataset: Any, collate_fn: Any) -> PrefetchLoader | None:
    """The unused loader of the same dataset and collate_fn, if there is one."""
    for loader in list(_unused):
        if loader.dataset is dataset and loader.collate_fn is collate_fn:
            return loader
    return None
