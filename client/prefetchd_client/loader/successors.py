"""Loaders that frameworks make anew from others, with a sampler of theirs: the successor gets the other's stream."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from prefetchd_client.loader.stream_names import Ordinal


class Predecessor(Protocol):
    """A loader that can hand its stream over."""

    dataset: Any
    collate_fn: Any

    def hand_over(self, options: dict[str, Any]) -> tuple[str, Ordinal | None]: ...


# Living ones that nobody has iterated over.
_unused: weakref.WeakSet[Predecessor] = weakref.WeakSet()


def await_successor(loader: Predecessor) -> None:
    """The loader, of no sampler of its own, has a stream that nobody has used so far."""
    _unused.add(loader)


def mark_used(loader: Predecessor) -> None:
    """From now on its stream is its own."""
    _unused.discard(loader)


def predecessor_of(dataset: Any, collate_fn: Any) -> Predecessor | None:
    """The unused loader of the same dataset and collate_fn, if there is one."""
    for loader in list(_unused):
        if loader.dataset is dataset and loader.collate_fn is collate_fn:
            return loader
    return None
