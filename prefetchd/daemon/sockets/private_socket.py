"""Listens on a Unix socket that our own user alone may connect to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_PRIVATE = 0o177


def listen_privately(path: Path, kind: socket.SocketKind, backlog: int) -> socket.socket:
    """Makes a socket at `path` that listens, of mode 0600 from its first moment on. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, kind)
    # The mode that bind(2) gives the file depends on the umask alone: to change it later would be too late.
    before = os.umask(_PRIVATE)
    try:
        sock.bind(os.fspath(path))
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock
