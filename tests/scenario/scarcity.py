"""Processes that cannot be had: for this one, or for another."""

from __future__ import annotations

import contextlib
import ctypes
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


CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 21, 24
NOBODY = 65534


def refuse_forks() -> None:
    """The kernel refuses forks and threads to this process from now on, by RLIMIT_NPROC: its real user becomes another,
    whose limit is none, and it gives up what would exempt it. Files and sockets it may use as before. For root."""
    libc = ctypes.CDLL(None, use_errno=True)
    version_3_of_this_process = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(version_3_of_this_process, sets):
        raise OSError(ctypes.get_errno(), "capget")
    exempting = 1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE
    # Effective, permitted and inheritable ones, those below 32.
    for place in range(3):
        sets[place] &= ~exempting
    os.setresuid(NOBODY, 0, 0)
    if libc.capset(version_3_of_this_process, sets):
        raise OSError(ctypes.get_errno(), "capset")
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
