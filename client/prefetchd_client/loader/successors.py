"""predecessor_of finds the loader that a framework makes another one of, with a sampler of its own: the successor gets
the other's stream. Decision 0051 has the reasons."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from prefetchd_client.loader.beginnings import Beginning
from prefetchd_client.loader.stream_names import Ordinal


class Predecessor(Protocol):
    """Declares a loader that can hand its stream over."""

    dataset: Any
    collate_fn: Any

    @property
    def beginning(self) -> Beginning: ...

    def hand_over(self, options: dict[str, Any]) -> tuple[str, Ordinal | None]: ...


# Living ones that nobody has iterated over.
_unused: weakref.WeakSet[Predecessor] = weakref.WeakSet()


def await_successor(loader: Predecessor) -> None:
    """Notes that the loader, which has no sampler of its own, has a stream that nobody has used so far."""
    _unused.add(loader)


def mark_used(loader: Predecessor) -> None:
    """Notes that the loader's stream is its own from now on."""
    _unused.discard(loader)


def predecessor_of(dataset: Any, collate_fn: Any) -> Predecessor | None:
    """Returns the unused loader of the same dataset and collate_fn, or None."""
    for loader in list(_unused):
        if loader.dataset is dataset and loader.collate_fn is collate_fn:
            return loader
    return None
