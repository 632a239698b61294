"""guard_forks keeps a forked child of the trainer from its parent's loaders: it must neither talk to the daemon nor
keep it waiting."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

from prefetchd.wire.errors import ForkedError


class _Guarded(Protocol):
    def abandon(self) -> None: ...


_guarded: weakref.WeakSet[Any] = weakref.WeakSet()
_forked: weakref.WeakSet[Any] = weakref.WeakSet()


def guard_forks(loader: _Guarded) -> None:
    """Has the loader marked, and its descriptors closed, in forked children from now on: an inherited socket would hide
    the trainer's death from the daemon."""
    _guarded.add(loader)


def is_forked(loader: object) -> bool:
    """Returns True in a child that was forked after the loader was made."""
    return loader in _forked


def check_not_forked(loader: object) -> None:
    """Raises ForkedError in a child that was forked after the loader was made."""
    if loader in _forked:
        raise ForkedError("this loader belongs to the parent process; make one of its own in the forked child")


def _after_fork_in_child() -> None:
    for loader in list(_guarded):
        _forked.add(loader)
        loader.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
