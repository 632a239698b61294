"""Locks single bytes of files by open file description: the kernel says who lives, never a pid.

Source: fcntl_locking(2), "Open file description locks". Such a lock belongs to the description that one open(2) made,
is inherited over fork, passes with SCM_RIGHTS, and ends when the last descriptor of it closes. Nothing here
blocks, but for wait_lock().
"""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = struct.Struct("hhqqi4x")


def try_lock(fd: int, offset: int, *, shared: bool = False) -> bool:
    """Locks the byte at `offset` through `fd`; False when a description other than this one holds it."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def wait_lock(fd: int, offset: int) -> None:
    """Locks the byte at `offset` through `fd`. Blocks while a description other than this one holds it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0))


def unlock(fd: int, offset: int) -> None:
    """Unlocks the byte at `offset`."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, offset, 1, 0))


def is_locked(fd: int, offset: int, length: int = 1) -> bool:
    """Returns True when another description holds a lock on any of these bytes. Takes no lock itself."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, offset, length, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def reopen(fd: int) -> int:
    """Returns a new description, close-on-exec, of the file behind `fd`, even when its name is gone: locks taken
    through it are its own."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
