"""The status segment as the daemon writes it: snapshots, in memory that anybody of its user can read at any time.

It is written by pwrite(2), and not mapped: whoever makes the file shorter does not end the daemon by SIGBUS.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

import posix_ipc

from prefetchd.ring.segment import is_named, unlink
from prefetchd.wire.errors import NoSpaceError, ProtocolError
from prefetchd.wire.own_segments import find_status, make_named, status_names
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.status_layout import (
    COPY_BYTES,
    CURRENT_OFFSET,
    HEAD_BYTES,
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    STATUS_BYTES,
    StatusHead,
    copy_offset,
    encode_head,
    encode_snapshot,
)

log = logging.getLogger("prefetchd")

FIRST_COPY_BYTES = 64 << 10
"""Most snapshots are shorter, and where shared memory is small it is needed for batches."""


class StatusSegment:
    """Written by the daemon alone. Memory is put behind what is written before it is: a full /dev/shm is an error, or
    a snapshot with fewer streams, and never SIGBUS."""

    def __init__(self, paths: RuntimePaths, generation: int) -> None:
        """Replaces what a former daemon of the same socket left. Raises NoSpaceError."""
        self._paths = paths
        self._generation = generation
        self.name = ""
        for name in find_status(paths):
            unlink(name)
        self._fd = self._make()
        self._reserved_bytes = FIRST_COPY_BYTES
        self._current = 0

    def beat(self) -> None:
        """The loop has come round."""
        self._put(HEARTBEAT.pack(time.monotonic_ns()), HEARTBEAT_OFFSET)

    def write(self, found: dict[str, Any]) -> None:
        """Makes `found` the current snapshot."""
        self._current ^= 1
        data = self._encode_what_fits(found)
        if os.fstat(self._fd).st_size < STATUS_BYTES:
            self._mend()
        self._put(data, copy_offset(self._current))
        self._put(self._current.to_bytes(4, "little"), CURRENT_OFFSET)
        self.beat()

    def restore_name(self) -> bool:
        """Makes the segment anew when somebody has removed its name: a daemon that runs must not seem to be absent.
        False when there is nothing to do. Raises NoSpaceError, and FileExistsError when another daemon has one now."""
        if is_named(self.name, self._fd):
            return False
        if find_status(self._paths):
            raise FileExistsError(17, "another daemon has made a status segment for this socket")
        fd = self._make()
        # What is read until the next write.
        os.pwrite(fd, os.pread(self._fd, FIRST_COPY_BYTES, copy_offset(self._current)), copy_offset(0))
        self._current = 0
        os.close(self._fd)
        self._fd = fd
        self._reserved_bytes = FIRST_COPY_BYTES
        return True

    def close(self) -> None:
        """Leaves nothing of it. Idempotent."""
        if self._fd < 0:
            return
        if is_named(self.name, self._fd):
            unlink(self.name)
        os.close(self._fd)
        self._fd = -1

    def _put(self, data: bytes, offset: int) -> None:
        """Where there is no memory for what somebody has cut off, nothing is written."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, data, offset)

    def _mend(self) -> None:
        """Somebody has made the file shorter."""
        log.warning("status segment made shorter by somebody, mended", extra={"fields": {"segment": self.name}})
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, STATUS_BYTES)
        self._reserved_bytes = 0
        self._put(self._head(), 0)

    def _head(self) -> bytes:
        return encode_head(StatusHead(os.getpid(), self._generation, time.monotonic_ns()))

    def _make(self) -> int:
        """Under a name that is free: somebody else may have taken the usual one."""
        self.name, fd = make_named(status_names(self._paths), _create)
        try:
            os.ftruncate(fd, STATUS_BYTES)
            for begin, length in [(0, HEAD_BYTES), *((copy_offset(copy), FIRST_COPY_BYTES) for copy in (0, 1))]:
                os.posix_fallocate(fd, begin, length)
        except OSError as error:
            unlink(self.name)
            os.close(fd)
            wanted_kib = (HEAD_BYTES + 2 * FIRST_COPY_BYTES) >> 10
            raise NoSpaceError(
                f"shared memory is full: the daemon's own {wanted_kib} KiB cannot be had ({error.strerror}). Enlarge "
                "/dev/shm (docker: --shm-size), or remove what fills it"
            ) from None
        os.pwrite(fd, self._head(), 0)
        return fd

    def _encode_what_fits(self, found: dict[str, Any]) -> bytes:
        streams = found["streams"]
        shown = len(streams)
        while True:
            try:
                data = encode_snapshot(found)
                if self._reserve(len(data)) or not shown:
                    return data
            except ProtocolError:
                if not shown:
                    raise
            shown //= 2
            found = {**found, "streams": streams[:shown], "streams_left_out": len(streams) - shown}

    def _reserve(self, length: int) -> bool:
        """True when each copy has memory behind so many bytes."""
        if length <= self._reserved_bytes:
            return True
        wanted = min(COPY_BYTES, max(length, 2 * self._reserved_bytes))
        try:
            for copy in (0, 1):
                os.posix_fallocate(self._fd, copy_offset(copy), wanted)
        except OSError:
            return False
        self._reserved_bytes = wanted
        return True


def _create(name: str) -> int:
    """A descriptor of a new segment. Raises FileExistsError."""
    try:
        fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0).fd
    except posix_ipc.ExistentialError:
        raise FileExistsError(name) from None
    return fd
