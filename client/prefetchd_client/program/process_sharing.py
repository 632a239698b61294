"""This module puts what multiprocessing shares between processes (locks, events, values, queues) into a program.

It is handed on as to a process that is spawned: by names, and by files that are open in this process. So it can be
taken up only as long as this process lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from multiprocessing import context, synchronize
from multiprocessing.reduction import ForkingPickler
from typing import Any


@contextlib.contextmanager
def as_if_spawning() -> Iterator[None]:
    """Lets this thread pickle what may be handed to spawned processes only."""
    former = context.get_spawning_popen()
    elsewhere: Any = _Elsewhere()
    context.set_spawning_popen(elsewhere)
    try:
        yield
    finally:
        context.set_spawning_popen(former)


def shared_reduction(obj: Any) -> Any:
    """Returns how multiprocessing reduces `obj`, or None when pickle knows better. Raises what multiprocessing raises,
    and FileNotFoundError for what no other process finds any more."""
    if isinstance(obj, synchronize.SemLock):
        # Those that are made for forks have no name: else nobody would say so before a worker looks for it.
        kind: Any = type(obj)
        kind.__setstate__(object.__new__(kind), kind.__getstate__(obj))
        return None
    pickler: Any = ForkingPickler
    reducer = pickler._extra_reducers.get(type(obj))
    if reducer is None or not reducer.__module__.startswith("multiprocessing."):
        return None
    return reducer(obj)


class _Elsewhere:
    """Stands for a process that will be, as multiprocessing knows those that it spawns."""

    def duplicate_for_child(self, fd: int) -> int:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise TypeError("a socket that is open in another process cannot be opened")
        return fd

    def DupFd(self, fd: int) -> _OpenFile:  # noqa: N802, it is multiprocessing's name
        return _OpenFile(os.getpid(), fd)


class _OpenFile:
    """Refers to a file or a pipe that is open in a process."""

    def __init__(self, pid: int, fd: int) -> None:
        self._path = f"/proc/{pid}/fd/{fd}"
        self._flags = os.O_CLOEXEC | fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        self._identity = _identity(fd)

    def detach(self) -> int:
        """Opens the file, and returns a descriptor that is the caller's own. Raises OSError when it is not open there
        any more."""
        fd = os.open(self._path, self._flags)
        if _identity(fd) != self._identity:
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "what was shared is closed, and another file is open", self._path)
        return fd


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
