"""Makes imports while a worker begins a phase of their own: what a module does is not what worker_init_fn does."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from prefetchd.wire.worker_status import IMPORTING, STARTING
from prefetchd.workers.worker_status_writer import WorkerStatusWriter

_bootstrap: Any = importlib._bootstrap


@contextlib.contextmanager
def imports_noted(note: WorkerStatusWriter) -> Iterator[None]:
    """Makes `note` say IMPORTING while the block imports a module that is not there yet, and STARTING otherwise. For
    one thread."""
    # Every way to import comes by here, and only for modules that are not in sys.modules.
    find_and_load = _bootstrap._find_and_load
    depth = 0

    def noted(*arguments: Any) -> Any:
        nonlocal depth
        depth += 1
        if depth == 1:
            note.phase(IMPORTING)
        try:
            return find_and_load(*arguments)
        finally:
            depth -= 1
            if depth == 0:
                note.phase(STARTING)

    _bootstrap._find_and_load = noted
    try:
        yield
    finally:
        _bootstrap._find_and_load = find_and_load
