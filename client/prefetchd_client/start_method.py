"""start_method decides how a loader's workers come to be: forked from this process, as DataLoader's are, or from
another interpreter."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any

START_VARIABLE = "PREFETCHD_START"
INLINE_VARIABLE = "PREFETCHD_INLINE"
FORK, EXEC = "fork", "exec"


def is_inline() -> bool:
    """Returns True when batches are made in this process, for a debugger."""
    return os.environ.get(INLINE_VARIABLE, "") not in ("", "0")


def start_method(multiprocessing_context: Any) -> str:
    """Returns FORK, unless it was asked for otherwise (PREFETCHD_START=exec, a multiprocessing context or start method
    other than "fork"), or a fork would not be able to import: another thread is at an import just now, and what it has
    locked stays locked in the child."""
    if os.environ.get(START_VARIABLE, "") == EXEC:
        return EXEC
    if multiprocessing_context is not None:
        return FORK if multiprocessing_context.get_start_method() == FORK else EXEC
    return EXEC if _default_start_method() not in (None, FORK) or _another_imports() else FORK


def _default_start_method() -> str | None:
    """Returns the start method that somebody has set for the whole process; None when nobody has."""
    import multiprocessing

    return multiprocessing.get_start_method(allow_none=True)


def _another_imports() -> bool:
    own = threading.get_ident()
    # Each module that is being imported has a lock, which a weak reference leads to.
    bootstrap: Any = importlib._bootstrap
    locks = [reference() for reference in list(bootstrap._module_locks.values())]
    return any(getattr(lock, "owner", None) not in (None, own) for lock in locks)
