"""Defines a slot's payload: one batch, self-describing, little-endian, version 1.

    offset 0     +-----------------------------------------------------------------+
                 | head: magic, version, counts, lengths                 40 bytes  |
                 +-----------------------------------------------------------------+
                 | storage table: offset, bytes, kind         24 bytes a storage   |
                 +-----------------------------------------------------------------+
                 | view table: storage, dtype, dimensions,                         |
                 |   storage offset, shape..., stride...      variable, per view   |
                 +-----------------------------------------------------------------+
                 | skeleton: the batch pickled (protocol 5) without its bytes      |
    meta_bytes   +-----------------------------------------------------------------+
                 | storages, each aligned to 64                                    |
    payload_bytes+-----------------------------------------------------------------+

The skeleton holds persistent ids where the bytes were: an int is a tensor, by its place in the view table; ("storage",
place in the storage table, dtype name or "") is a bare storage, as tensors of other kinds pickle themselves; ("main",
qualified name) is something that the trainer's __main__ defines. Storages of kind BUFFER are the pickle's out-of-band
buffers, in order.

Everything before the storages is the payload's meta. Batches filled by rows differ only in their storages, so a reader
may remember what it made of a meta.

A stream's row layout says how a batch is filled row by row: the meta of a full batch, the signature that every sample
must have, and where each leaf's rows lie.
"""

from __future__ import annotations

import dataclasses
import struct

import msgpack

from prefetchd.wire.errors import ProtocolError

MAGIC = 0x42444650  # "PFDB"
LAYOUT_VERSION = 1
STORAGE_ALIGNMENT = 64

HEAD = struct.Struct("<IHHQQIIII")
STORAGE_ENTRY = struct.Struct("<QQII")
VIEW_HEAD = struct.Struct("<IHHQ")

TENSOR, BUFFER = 0, 1

# A dtype's code is its place here; the list only grows.
DTYPES = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
    "complex32",
    "complex64",
    "complex128",
    "uint16",
    "uint32",
    "uint64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
DTYPE_BYTES = (1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 4, 8, 16, 2, 4, 8, 1, 1, 1, 1)


@dataclasses.dataclass(frozen=True)
class StorageEntry:
    """Bytes of the payload that tensors or arrays are views of; `offset` from the payload's start."""

    offset: int
    storage_bytes: int
    kind: int = TENSOR


@dataclasses.dataclass(frozen=True)
class ViewEntry:
    """A dense tensor over a storage; `storage_offset` and `stride` in elements, as torch counts them."""

    storage: int
    dtype: int
    storage_offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PayloadMeta:
    """The part of a payload before its storages, which describes them."""

    storages: tuple[StorageEntry, ...]
    views: tuple[ViewEntry, ...]
    skeleton: bytes

    @property
    def meta_bytes(self) -> int:
        views = sum(VIEW_HEAD.size + 16 * len(view.shape) for view in self.views)
        return HEAD.size + STORAGE_ENTRY.size * len(self.storages) + views + len(self.skeleton)

    @property
    def payload_bytes(self) -> int:
        return max((entry.offset + entry.storage_bytes for entry in self.storages), default=self.meta_bytes)


def aligned(offset: int) -> int:
    """Returns `offset`, or the next offset at which a storage may begin."""
    return -(-offset // STORAGE_ALIGNMENT) * STORAGE_ALIGNMENT


def layout_payload(sizes: list[tuple[int, int]], views: tuple[ViewEntry, ...], skeleton: bytes) -> PayloadMeta:
    """Lays storages of these (bytes, kind) out one after another, aligned. Returns the meta."""
    bare = PayloadMeta(tuple(StorageEntry(0, 0, kind) for _, kind in sizes), views, skeleton)
    offset = aligned(bare.meta_bytes)
    entries = []
    for storage_bytes, kind in sizes:
        entries.append(StorageEntry(offset, storage_bytes, kind))
        offset = aligned(offset + storage_bytes)
    return dataclasses.replace(bare, storages=tuple(entries))


def encode_meta(meta: PayloadMeta) -> bytes:
    parts = [
        HEAD.pack(
            MAGIC,
            LAYOUT_VERSION,
            0,
            meta.payload_bytes,
            meta.meta_bytes,
            len(meta.storages),
            len(meta.views),
            len(meta.skeleton),
            0,
        )
    ]
    parts += [STORAGE_ENTRY.pack(entry.offset, entry.storage_bytes, entry.kind, 0) for entry in meta.storages]
    for view in meta.views:
        dimensions = len(view.shape)
        parts.append(VIEW_HEAD.pack(view.storage, view.dtype, dimensions, view.storage_offset))
        parts.append(struct.pack(f"<{2 * dimensions}q", *view.shape, *view.stride))
    parts.append(meta.skeleton)
    return b"".join(parts)


def meta_length(payload: memoryview) -> int:
    """Returns how many bytes the payload's meta takes. Raises ProtocolError when this is no payload."""
    if len(payload) < HEAD.size:
        raise ProtocolError(f"not a batch: {len(payload)} bytes")
    magic, version, _, _, meta_bytes, *_ = HEAD.unpack_from(payload)
    if magic != MAGIC or version != LAYOUT_VERSION or meta_bytes > len(payload):
        raise ProtocolError(f"not a batch: magic {magic:#x}, version {version}, meta of {meta_bytes} bytes")
    return int(meta_bytes)


def decode_meta(data: bytes | memoryview) -> PayloadMeta:
    """Decodes the meta at the start of `data`. Raises ProtocolError."""
    try:
        return _decode_meta(data)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"a batch's meta is damaged: {error}") from None


def _decode_meta(data: bytes | memoryview) -> PayloadMeta:
    magic, version, _, payload_bytes, meta_bytes, storages, views, skeleton_bytes, _ = HEAD.unpack_from(data)
    if magic != MAGIC or version != LAYOUT_VERSION:
        raise ProtocolError(f"not a batch: magic {magic:#x}, version {version}")
    if meta_bytes > len(data):
        raise ProtocolError(f"a batch's meta is {meta_bytes} bytes; only {len(data)} are there")
    offset = HEAD.size
    storage_entries = []
    # All is checked here: tensors are made over these offsets, and one beyond the mapping would end the process.
    for _ in range(storages):
        at, size, kind, _ = STORAGE_ENTRY.unpack_from(data, offset)
        if at + size > payload_bytes:
            raise ProtocolError(f"a batch's storage ends at {at + size}, beyond its {payload_bytes} bytes")
        storage_entries.append(StorageEntry(at, size, kind))
        offset += STORAGE_ENTRY.size
    view_entries = []
    for _ in range(views):
        storage, dtype, dimensions, storage_offset = VIEW_HEAD.unpack_from(data, offset)
        if storage >= storages or dtype >= len(DTYPES):
            raise ProtocolError(f"a batch's view names storage {storage} and dtype {dtype}")
        offset += VIEW_HEAD.size
        numbers = struct.unpack_from(f"<{2 * dimensions}q", data, offset)
        offset += 16 * dimensions
        view = ViewEntry(storage, dtype, storage_offset, numbers[:dimensions], numbers[dimensions:])
        if _end_of(view) > storage_entries[storage].storage_bytes:
            raise ProtocolError(f"a batch's view ends beyond its storage {storage}")
        view_entries.append(view)
    skeleton = bytes(data[offset : offset + skeleton_bytes])
    meta = PayloadMeta(tuple(storage_entries), tuple(view_entries), skeleton)
    if len(skeleton) != skeleton_bytes or meta.meta_bytes != meta_bytes:
        raise ProtocolError(f"a batch's meta tells {meta_bytes} bytes and has {meta.meta_bytes}")
    return meta


def _end_of(view: ViewEntry) -> int:
    """Returns the offset behind the last byte of its storage that the view reaches."""
    if 0 in view.shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride))
    return (view.storage_offset + last + 1) * DTYPE_BYTES[view.dtype]


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """The way in which a stream's batches are filled by rows.

    `meta` describes a batch of `rows` rows whose view k has shape (rows, ...) and is the whole of its storage;
    `signature` names types, dtypes and shapes that every sample must have.
    """

    rows: int
    signature: bytes
    meta: PayloadMeta

    def meta_for(self, rows: int) -> PayloadMeta:
        """Returns the meta of a batch of `rows` rows, at most the full number: storages stay where they are."""
        if rows == self.rows:
            return self.meta
        views = tuple(dataclasses.replace(view, shape=(rows, *view.shape[1:])) for view in self.meta.views)
        storages = tuple(
            dataclasses.replace(entry, storage_bytes=entry.storage_bytes // self.rows * rows)
            for entry in self.meta.storages
        )
        return dataclasses.replace(self.meta, views=views, storages=storages)


def encode_row_layout(layout: RowLayout) -> bytes:
    return bytes(msgpack.packb([LAYOUT_VERSION, layout.rows, layout.signature, encode_meta(layout.meta)]))


def decode_row_layout(data: bytes) -> RowLayout:
    """Decodes a row layout. Raises ProtocolError."""
    try:
        version, rows, signature, meta = msgpack.unpackb(data)
    except Exception as error:
        raise ProtocolError(f"a row layout is damaged: {error}") from None
    if type(rows) is not int or rows < 1 or type(signature) is not bytes or type(meta) is not bytes:
        raise ProtocolError("a row layout is damaged: fields of the wrong type")
    if version != LAYOUT_VERSION:
        raise ProtocolError(f"row layout version {version}; this prefetchd reads {LAYOUT_VERSION}")
    return RowLayout(rows, signature, decode_meta(meta))
