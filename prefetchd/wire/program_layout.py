"""Defines the program segment: what makes a stream's batches, one shared mapping, little-endian, version 1.

    offset 0   +--------------------------------------------------------------+
               | head: magic, version, lengths, buffer count       4096 bytes |
               +--------------------------------------------------------------+
               | environment, msgpack                                         |
               | pickle (cloudpickle, protocol 5) of the program              |
               | buffer table: offset, bytes                16 bytes a buffer |
               +--------------------------------------------------------------+  aligned to 4096
               | buffer 0 | buffer 1 | ...    each aligned to 4096            |
               +--------------------------------------------------------------+

The client writes it once and hands it over; the daemon only keeps it (it never unpickles); zygotes load it. Large
tensors and arrays of the dataset are buffers: all workers map one copy, privately, so that a write stays with its
writer. Decision 0002 says why it is no part of the ring.
"""

from __future__ import annotations

import dataclasses
import struct

import msgpack

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.segment_layout import PAGE_BYTES

MAGIC = b"PFDPROG\0"
LAYOUT_VERSION = 1
HEAD = struct.Struct("<8sIIQQQQ")
HEAD_BYTES = PAGE_BYTES
BUFFER_ENTRY = struct.Struct("<QQ")
ENVIRONMENT_LIMIT_BYTES = 16 << 20
"""The most that an environment may have: more than execve(2) would take."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """The environment that the user's code runs in: the trainer's own interpreter, path, directory and variables. Never
    logged.

    `preload` names modules that the trainer has loaded and that a zygote imports before it forks. `authkey` is what
    processes of its show one another, to reach the trainer's multiprocessing.Manager; empty if it has none.
    """

    executable: bytes
    sys_path: tuple[str, ...]
    directory: bytes
    variables: dict[bytes, bytes] = dataclasses.field(repr=False)
    preload: tuple[str, ...] = ()
    authkey: bytes = dataclasses.field(default=b"", repr=False)


def encode_environment(environment: Environment) -> bytes:
    parts: list[object] = [
        environment.executable,
        list(environment.sys_path),
        environment.directory,
        dict(sorted(environment.variables.items())),
        list(environment.preload),
    ]
    if environment.authkey:
        parts.append(environment.authkey)
    return bytes(msgpack.packb(parts, unicode_errors="surrogateescape"))


def decode_environment(data: bytes | memoryview) -> Environment:
    """Decodes an environment. Raises ProtocolError when it is damaged."""
    try:
        executable, sys_path, directory, variables, preload, *rest = msgpack.unpackb(
            data, unicode_errors="surrogateescape", strict_map_key=False
        )
        (authkey,) = rest or [b""]
        if not isinstance(authkey, bytes):
            raise TypeError(f"an authkey of type {type(authkey).__name__}")
        return Environment(executable, tuple(sys_path), directory, variables, tuple(preload), authkey)
    except Exception as error:
        raise ProtocolError(f"a program's environment is damaged: {error}") from None


@dataclasses.dataclass(frozen=True)
class ProgramLayout:
    """The places of the parts of a program segment; offsets from its start, in bytes."""

    environment_bytes: int
    pickle_bytes: int
    buffer_sizes: tuple[int, ...]

    @property
    def environment_offset(self) -> int:
        return HEAD_BYTES

    @property
    def pickle_offset(self) -> int:
        return self.environment_offset + self.environment_bytes

    @property
    def table_offset(self) -> int:
        return self.pickle_offset + self.pickle_bytes

    @property
    def buffer_offsets(self) -> tuple[int, ...]:
        offsets = []
        at = _page_aligned(self.table_offset + BUFFER_ENTRY.size * len(self.buffer_sizes))
        for size in self.buffer_sizes:
            offsets.append(at)
            at = _page_aligned(at + size)
        return tuple(offsets)

    @property
    def program_bytes(self) -> int:
        if not self.buffer_sizes:
            return _page_aligned(self.table_offset)
        return _page_aligned(self.buffer_offsets[-1] + self.buffer_sizes[-1])


def encode_head(layout: ProgramLayout) -> bytes:
    return HEAD.pack(
        MAGIC,
        LAYOUT_VERSION,
        0,
        layout.environment_bytes,
        layout.pickle_bytes,
        len(layout.buffer_sizes),
        layout.program_bytes,
    )


def encode_table(layout: ProgramLayout) -> bytes:
    return b"".join(map(BUFFER_ENTRY.pack, layout.buffer_offsets, layout.buffer_sizes))


def environment_bytes(head: bytes, program_bytes: int) -> int:
    """Returns how long the environment is in a program of `program_bytes` that begins with `head`; it lies at
    HEAD_BYTES. Raises ProtocolError."""
    if len(head) < HEAD.size:
        raise ProtocolError(f"a program segment of {program_bytes} bytes")
    magic, version, _, length, *_ = HEAD.unpack_from(head)
    if magic != MAGIC or version != LAYOUT_VERSION:
        raise ProtocolError(f"not a program segment of version {LAYOUT_VERSION}")
    if length > min(ENVIRONMENT_LIMIT_BYTES, max(0, program_bytes - HEAD_BYTES)):
        raise ProtocolError(f"a program segment tells of an environment of {length} bytes")
    return int(length)


def decode_program(data: memoryview) -> ProgramLayout:
    """Finds where the parts of this program segment lie. Raises ProtocolError when they cannot lie there."""
    try:
        magic, version, _, environment_bytes, pickle_bytes, buffers, program_bytes = HEAD.unpack_from(data)
        if magic != MAGIC or version != LAYOUT_VERSION:
            raise ProtocolError(f"not a program segment of version {LAYOUT_VERSION}")
        table = HEAD_BYTES + environment_bytes + pickle_bytes
        if table + buffers * BUFFER_ENTRY.size > len(data):
            raise ProtocolError(f"a program segment's table ends beyond its {len(data)} bytes")
        entries = [BUFFER_ENTRY.unpack_from(data, table + i * BUFFER_ENTRY.size) for i in range(buffers)]
    except struct.error as error:
        raise ProtocolError(f"a program segment is damaged: {error}") from None
    layout = ProgramLayout(environment_bytes, pickle_bytes, tuple(size for _, size in entries))
    if layout.program_bytes != program_bytes or program_bytes > len(data):
        raise ProtocolError(f"a program segment tells {program_bytes} bytes and has {len(data)}")
    return layout


def _page_aligned(value: int) -> int:
    return -(-value // PAGE_BYTES) * PAGE_BYTES
