"""Remember which data files user code opens for reading in this worker, and tell later whether they have changed.

A batch may be made before its epoch begins, and used after the training loop has rewritten a file that was read for it.
So the daemon keeps with each batch what its files were, and has them checked when the epoch begins (decision 0130).

Python reports each open() of its own, and of libraries that use it, to an audit hook. Files that a C library opens by
itself are not seen. Of each file the first look counts: if it is rewritten while it is read, its batch is made again.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgpack

from prefetchd.wire.messages import TOO_MANY_FILES
from prefetchd.wire.stream_spec import Position

MOST_FILES = 4096
"""Maximum files of one task that are remembered."""
MOST_BYTES = 1 << 18
MOST_SET_ASIDE = 4096
"""Maximum tasks whose files are kept for a later one: the oldest of more belong to work that another worker does."""
_COMPRESSED_FROM = 1 << 12
_NOT_DATA = ("/proc/", "/sys/", "/dev/", os.path.join(sys.base_prefix, ""), os.path.join(sys.prefix, ""))
_CODE = (".py", ".pyc", ".so", ".pth")

Stamp = tuple[int, int, int]
"""A file's inode, its size in bytes, and its time of change in ns."""

_current: OpenedFiles | None = None
_is_hooked = False


class OpenedFiles:
    """Collect the files that are opened for reading in this process, from watch() on."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._set_aside: dict[Position, dict[str, Stamp]] = {}

    def watch(self) -> None:
        """Begin to collect. One object at a time collects in a process."""
        global _current, _is_hooked
        _current = self
        if not _is_hooked:
            # A hook stays for as long as the process lives.
            _is_hooked = True
            sys.addaudithook(_on_event)

    def opened(self, path: Any, flags: int) -> None:
        """Remember a file that is about to be opened with these flags."""
        if flags & os.O_ACCMODE == os.O_WRONLY or type(path) not in (str, bytes):
            return
        name = os.fsdecode(path)
        if name in self._stamps or name.endswith(_CODE):
            return
        name = os.path.abspath(name)
        if name.startswith(_NOT_DATA):
            return
        stamp = stamp_of(name)
        if stamp is not None and len(self._stamps) <= MOST_FILES:
            self._stamps.setdefault(name, stamp)

    def set_aside(self, work: Position) -> None:
        """Keep the files that were opened since the last call for the take() of `work`: a later task answers for it."""
        if self._stamps:
            stamps, self._stamps = self._stamps, {}
            self._set_aside[work] = stamps | self._set_aside.pop(work, {})
            if len(self._set_aside) > MOST_SET_ASIDE:
                del self._set_aside[next(iter(self._set_aside))]

    def take(self, work: Position | None = None) -> bytes:
        """Return the files that were opened since the last call, and those that were set aside for `work`, for
        changed_file(); empty when there are none."""
        former = self._set_aside.pop(work, {}) if work is not None else {}
        if not self._stamps and not former:
            return b""
        # Of a file the first look counts.
        stamps, self._stamps = self._stamps | former, {}
        return pack_files((os.fsencode(path), stamp) for path, stamp in stamps.items())


def pack_files(files: Iterable[tuple[bytes, Stamp]]) -> bytes:
    """Return the files as take() does; empty when there are none."""
    listed = [[path, *stamp] for path, stamp in files]
    if not listed:
        return b""
    packed = bytes(msgpack.packb(listed))
    if len(packed) > _COMPRESSED_FROM:
        packed = bytes(msgpack.packb(zlib.compress(packed, 1)))
    return TOO_MANY_FILES if len(listed) > MOST_FILES or len(packed) > MOST_BYTES else packed


def files_in(opened: bytes) -> Iterator[tuple[bytes, Stamp]]:
    """Yield the path and the stamp of each file in `opened`, which is what take() has returned, also several times in a
    row. Nothing of TOO_MANY_FILES."""
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(opened)
    for found in unpacker:
        if found is None:
            continue
        files = msgpack.unpackb(zlib.decompress(found), use_list=False) if isinstance(found, bytes) else found
        for path, *stamp in files:
            yield path, tuple(stamp)


def changed_file(opened: bytes) -> str | None:
    """Return the path of the first file that is not what it was when take() returned it, or None. `opened` is what
    take() has returned, also several times in a row."""
    return next((os.fsdecode(path) for path, stamp in files_in(opened) if stamp_of(path) != stamp), None)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _current is not None:
        path, _, flags = arguments
        _current.opened(path, flags)


def stamp_of(path: str | bytes) -> Stamp | None:
    """Return the stamp of a regular file, or None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None
