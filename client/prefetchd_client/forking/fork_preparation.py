"""prepare_to_fork imports and looks up, when prefetchd is imported, what a fork of this process needs before its first
batch."""

from __future__ import annotations

import importlib
import os

from prefetchd_client.start_method import EXEC, START_VARIABLE, is_inline

_NEEDED = ("prefetchd.workers.forked_zygote", "prefetchd.workers.planner", "prefetchd.workers.worker")


def prepare_to_fork() -> None:
    """Imports what a fork needs, where this process may be forked: else each fork would do that anew, between a
    loader's making and its first batch. Called with the import of prefetchd_client. Starts nothing and changes nothing
    but what is imported."""
    if os.environ.get(START_VARIABLE, "") == EXEC or is_inline():
        return
    for module in _NEEDED:
        importlib.import_module(module)
    importlib.import_module("prefetchd.workers.process_setup").find_thread_pools()
