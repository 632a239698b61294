"""Processes that cannot be had: for this one, or for another."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def few_descriptors_left(pid: int, count: int) -> Iterator[None]:
    """The process can have so many more: those that come with a message, but not the four that a child takes."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    limit = next(at + 1 for at in itertools.count() if at + 1 - sum(each <= at for each in taken) == count)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_fork_of_this_process() -> Iterator[None]:
    """As with a limit on processes or on memory; others may be executed."""

    def fail() -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fork", fail)
        yield
