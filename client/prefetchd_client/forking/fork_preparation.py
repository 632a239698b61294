"""What a fork of this process needs before its first batch is imported and looked up when prefetchd is imported."""

from __future__ import annotations

import importlib
import os

from prefetchd_client.start_method import EXEC, START_VARIABLE, is_inline

_NEEDED = ("prefetchd.workers.forked_zygote", "prefetchd.workers.planner", "prefetchd.workers.worker")


def prepare_to_fork() -> None:
    """Called with the import of prefetchd_client, where forks may come of it: each fork would do the same anew, between
    a loader's making and its first batch. Starts nothing and changes nothing but what is imported."""
    if os.environ.get(START_VARIABLE, "") == EXEC or is_inline():
        return
    for module in _NEEDED:
        importlib.import_module(module)
    importlib.import_module("prefetchd.workers.process_setup").find_thread_pools()
