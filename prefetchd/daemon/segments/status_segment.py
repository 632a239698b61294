"""Writes the status segment: snapshots, in memory that any process of the daemon's user can read at any time.

It is written by pwrite(2), and not mapped: when its file is made shorter, the daemon does not end by SIGBUS (decision
0102).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

# It was asked for as the library for shared memory; what it does here is shm_open(3). On Linux that makes a file in
# /dev/shm, as os.open() does as well: rings, which may lie on RAM disks too, are made by that (ring/segment.py).
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
"""The size of each copy at first: most snapshots are shorter, and where shared memory is small it is needed for
batches."""


class StatusSegment:
    """Writes the status segment, which only the daemon does. Memory is put behind a part before it is written: a full
    /dev/shm is an error, or a snapshot with fewer streams, and never SIGBUS."""

    def __init__(self, paths: RuntimePaths, generation: int) -> None:
        """Replaces the segment that a former daemon of the same socket left. Raises NoSpaceError."""
        self._paths = paths
        self._generation = generation
        self.name = ""
        for name in find_status(paths):
            unlink(name)
        self._fd = self._make()
        self._reserved_bytes = FIRST_COPY_BYTES
        self._current = 0

    def beat(self) -> None:
        """Writes that the loop has come round."""
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
        """Makes the segment anew when its name was removed: a daemon that runs must not seem to be absent. False when
        there is nothing to do. Raises NoSpaceError, and FileExistsError when another daemon has a segment now."""
        if is_named(self.name, self._fd):
            return False
        if find_status(self._paths):
            raise FileExistsError(17, "another daemon has made a status segment for this socket")
        fd = self._make()
        # This snapshot is read until the next write.
        os.pwrite(fd, os.pread(self._fd, FIRST_COPY_BYTES, copy_offset(self._current)), copy_offset(0))
        self._current = 0
        os.close(self._fd)
        self._fd = fd
        self._reserved_bytes = FIRST_COPY_BYTES
        return True

    def close(self) -> None:
        """Removes the segment. Idempotent."""
        if self._fd < 0:
            return
        if is_named(self.name, self._fd):
            unlink(self.name)
        os.close(self._fd)
        self._fd = -1

    def _put(self, data: bytes, offset: int) -> None:
        """Writes `data`; where there is no memory for what somebody has cut off, nothing."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, data, offset)

    def _mend(self) -> None:
        """Makes the file as long as it should be again, after somebody has made it shorter."""
        log.warning("status segment made shorter by somebody, mended", extra={"fields": {"segment": self.name}})
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, STATUS_BYTES)
        self._reserved_bytes = 0
        self._put(self._head(), 0)

    def _head(self) -> bytes:
        return encode_head(StatusHead(os.getpid(), self._generation, time.monotonic_ns()))

    def _make(self) -> int:
        """Makes a segment under a name that is free: somebody else may have taken the usual one. Raises
        NoSpaceError."""
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
        """Puts memory behind so many bytes of each copy; False when there is none."""
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
    """Returns a descriptor of a new segment. Raises FileExistsError."""
    try:
        fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0).fd
    except posix_ipc.ExistentialError:
        raise FileExistsError(name) from None
    return fd
