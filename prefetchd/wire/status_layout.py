"""Defines the status segment: what the daemon last said of itself, one shared mapping, little-endian, version 1.

    offset 0   +------------------------------------------------------------------+
               | head: magic, version, pid, generation, heartbeat, current copy   |  4096 bytes
    COPIES     +------------------------------------------------------------------+
               | copy 0: length, crc32, snapshot as JSON                          |  COPY_BYTES
               | copy 1: length, crc32, snapshot as JSON                          |  COPY_BYTES
               +------------------------------------------------------------------+

The daemon writes the copy that is not current and then makes it current; a reader checks the crc and tries again when
it was overtaken. It is memory and not an answer, so that it can be read while the daemon hangs or after it died
(decision 0013).
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from typing import Any

from prefetchd.wire.errors import ProtocolError

MAGIC = b"PFDSTAT\0"
LAYOUT_VERSION = 1
SNAPSHOT_VERSION = 1

# magic, version, pid, generation, heartbeat (CLOCK_MONOTONIC, ns), current copy
HEAD = struct.Struct("<8sIIQQI")
HEAD_BYTES = 4096
COPY_HEAD = struct.Struct("<II")
COPY_BYTES = 1 << 20
STATUS_BYTES = HEAD_BYTES + 2 * COPY_BYTES
HEARTBEAT = struct.Struct("<Q")
HEARTBEAT_OFFSET = 24
CURRENT_OFFSET = 32


@dataclasses.dataclass(frozen=True)
class StatusHead:
    """The status segment's head: which daemon wrote it, and when its loop last came round."""

    pid: int
    generation: int
    heartbeat_ns: int
    current: int = 0


def encode_head(head: StatusHead) -> bytes:
    return HEAD.pack(MAGIC, LAYOUT_VERSION, head.pid, head.generation, head.heartbeat_ns, head.current)


def decode_head(data: bytes | memoryview) -> StatusHead:
    """Decodes the head. Raises ProtocolError when this is no status segment of this version."""
    if len(data) < HEAD.size:
        raise ProtocolError("a status segment without a head")
    magic, version, pid, generation, heartbeat_ns, current = HEAD.unpack_from(data)
    if magic == MAGIC and version != LAYOUT_VERSION:
        raise ProtocolError(
            f"a status segment of version {version}; this prefetchd reads {LAYOUT_VERSION}: its daemon is of another "
            "version. Use that one's command, or stop it with `prefetchd stop`"
        )
    if magic != MAGIC or current > 1:
        raise ProtocolError(f"not a status segment of version {LAYOUT_VERSION}")
    return StatusHead(pid, generation, heartbeat_ns, current)


def copy_offset(copy: int) -> int:
    return HEAD_BYTES + copy * COPY_BYTES


def encode_snapshot(snapshot: dict[str, Any]) -> bytes:
    """Encodes one copy's content. Raises ProtocolError when it is too long."""
    text = json.dumps(snapshot, separators=(",", ":")).encode()
    if len(text) + COPY_HEAD.size > COPY_BYTES:
        raise ProtocolError(f"a snapshot of {len(text)} bytes; allowed: {COPY_BYTES}")
    return COPY_HEAD.pack(len(text), zlib.crc32(text)) + text


def decode_snapshot(data: bytes | bytearray | memoryview, copy: int) -> dict[str, Any] | None:
    """Returns the snapshot in `copy` of a whole segment; see decode_copy()."""
    offset = copy_offset(copy)
    return decode_copy(bytes(data[offset : offset + COPY_BYTES]))


def decode_copy(content: bytes) -> dict[str, Any] | None:
    """Returns the snapshot in these bytes of one copy, or None when it was overwritten while it was read, or never
    written."""
    if len(content) < COPY_HEAD.size:
        return None
    length, crc = COPY_HEAD.unpack_from(content)
    text = content[COPY_HEAD.size : COPY_HEAD.size + length]
    if not text or zlib.crc32(text) != crc:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
