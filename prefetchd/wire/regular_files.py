"""Files in directories where others may leave something too: only regular ones are read, and only so much of them."""

from __future__ import annotations

import errno
import os
import stat

PIECE_BYTES = 1 << 20


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor of the file, close-on-exec, to be read. Never blocks. Raises OSError, also for what is a symbolic
    link, a directory, a pipe or a device."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
    return fd


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """All of a file. Raises OSError as open_regular() does, and when it is longer than the limit."""
    fd = open_regular(path)
    try:
        content = read_first(fd, limit_bytes + 1)
    finally:
        os.close(fd)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"longer than {limit_bytes} bytes", os.fspath(path))
    return content


def read_first(fd: int, limit_bytes: int) -> bytes:
    """The first bytes of a file, up to so many. Raises OSError."""
    content = bytearray()
    while len(content) < limit_bytes:
        piece = os.pread(fd, min(PIECE_BYTES, limit_bytes - len(content)), len(content))
        if not piece:
            break
        content += piece
    return bytes(content)
