"""Wraps inotify(7) by ctypes: a descriptor that can be read when something in a directory changes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator

MODIFY, CLOSE_WRITE, MOVED_FROM, MOVED_TO = 0x2, 0x8, 0x40, 0x80
CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x100, 0x200, 0x400, 0x800
IGNORED = 0x8000
CHANGES = MODIFY | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF

_EVENT = struct.Struct("iIII")
_ROOM = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]


class DirectoryWatch:
    """Watches one directory, not those inside. Raises OSError when that cannot be: there is none, or too many are
    watched already."""

    def __init__(self, directory: str, mask: int = CHANGES) -> None:
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify cannot be had")
        if _libc.inotify_add_watch(self.fd, os.fsencode(directory), mask) < 0:
            code = ctypes.get_errno()
            self.close()
            raise OSError(code, os.strerror(code), directory)

    def changes(self) -> Iterator[tuple[int, str]]:
        """Yields (mask, name in the directory) of what has happened since the last call; name is empty for the
        directory itself. Does not block."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, _ROOM):
                at = 0
                while at < len(data):
                    _, mask, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size
                    yield mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
                    at += length

    def close(self) -> None:
        """Closes the descriptor. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
