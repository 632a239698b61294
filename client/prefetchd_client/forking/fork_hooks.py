"""run_fork_hooks runs what objects of ours do in a fork of the trainer that makes batches, before anything is asked of
them."""

from __future__ import annotations

import traceback
from collections.abc import Callable

_hooks: list[Callable[[], None]] = []


def in_forks(hook: Callable[[], None]) -> Callable[[], None]:
    """Registers the decorated function: it is called in each such fork."""
    _hooks.append(hook)
    return hook


def run_fork_hooks() -> None:
    """Calls all registered functions. What one raises is printed, and keeps no other from its turn."""
    for hook in _hooks:
        try:
            hook()
        except Exception:
            traceback.print_exc()
