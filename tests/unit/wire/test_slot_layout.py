"""A slot's payload: storages aligned and apart, tables that round-trip, and damage that is told."""

from __future__ import annotations

import dataclasses
import itertools
import math
import struct

import hypothesis.strategies as st
import msgpack
import pytest
import torch
from hypothesis import given

from prefetchd.wire import slot_layout as layout
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.slot_layout import (
    BUFFER,
    DTYPE_BYTES,
    DTYPES,
    HEAD,
    STORAGE_ALIGNMENT,
    STORAGE_ENTRY,
    TENSOR,
    VIEW_HEAD,
    PayloadMeta,
    RowLayout,
    StorageEntry,
    ViewEntry,
    aligned,
    decode_meta,
    decode_row_layout,
    encode_meta,
    encode_row_layout,
    layout_payload,
    meta_length,
)
from tests.budgets import tries
from tests.unit.wire.golden.examples import PAYLOAD_META, ROW_LAYOUT

SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
sizes_and_kinds = st.lists(st.tuples(st.integers(0, 1 << 40), st.sampled_from([TENSOR, BUFFER])), max_size=8)


@st.composite
def view_entries(draw: st.DrawFn, storages: int) -> ViewEntry:
    dimensions = draw(st.integers(0, 5))
    numbers = st.lists(st.integers(0, 1 << 8), min_size=dimensions, max_size=dimensions).map(tuple)
    return ViewEntry(
        draw(st.integers(0, storages - 1)),
        draw(st.integers(0, len(DTYPES) - 1)),
        draw(st.integers(0, 1 << 40)),
        draw(numbers),
        draw(numbers),
    )


@st.composite
def metas(draw: st.DrawFn) -> PayloadMeta:
    sizes = draw(sizes_and_kinds)
    views = draw(st.lists(view_entries(len(sizes)), max_size=6)) if sizes else []
    for view in views:
        # Each storage is long enough for all that looks at it.
        reach = view.storage_offset + sum(map(int.__mul__, view.shape, view.stride)) + 1
        sizes[view.storage] = (max(sizes[view.storage][0], 16 * reach), sizes[view.storage][1])
    return layout_payload(sizes, tuple(views), draw(st.binary(max_size=200)))


@given(metas())
@tries(150)
def test_storages_are_placed_in_order_aligned_and_apart_behind_the_meta(meta):
    end = meta.meta_bytes
    assert len(encode_meta(meta)) == end
    for entry in meta.storages:
        assert entry.offset % STORAGE_ALIGNMENT == 0
        assert end <= entry.offset < end + STORAGE_ALIGNMENT
        end = entry.offset + entry.storage_bytes
    assert meta.payload_bytes == end


@given(sizes_and_kinds, st.binary(max_size=50))
@tries(100)
def test_placing_keeps_sizes_kinds_and_skeleton(sizes, skeleton):
    meta = layout_payload(sizes, (), skeleton)
    assert [(entry.storage_bytes, entry.kind) for entry in meta.storages] == sizes
    assert meta.skeleton == skeleton


@given(st.integers(0, 1 << 60))
@tries(100)
def test_aligned_is_the_next_place_where_a_storage_may_begin(offset):
    assert aligned(offset) % STORAGE_ALIGNMENT == 0
    assert 0 <= aligned(offset) - offset < STORAGE_ALIGNMENT


@given(metas(), st.binary(max_size=100))
@tries(150)
def test_a_meta_round_trips_whatever_follows_it(meta, rest):
    data = encode_meta(meta) + rest
    assert decode_meta(data) == meta
    assert decode_meta(memoryview(data)) == meta
    assert meta_length(memoryview(data)) == meta.meta_bytes


@given(st.lists(SIGNED, min_size=1, max_size=4))
@tries(50)
def test_strides_may_be_any_signed_number(strides):
    view = ViewEntry(0, 0, 0, (1,) * len(strides), tuple(strides))
    assert decode_meta(encode_meta(layout_payload([(8, TENSOR)], (view,), b""))).views == (view,)


def test_a_payload_of_nothing_but_its_skeleton_ends_with_it():
    meta = layout_payload([], (), b"skeleton")
    assert meta.payload_bytes == meta.meta_bytes == HEAD.size + 8
    assert decode_meta(encode_meta(meta)) == meta


# --- dtypes ---


@pytest.mark.parametrize(("name", "size"), list(zip(DTYPES, DTYPE_BYTES, strict=True)))
def test_dtypes_have_the_sizes_that_torch_gives_them(name, size):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    assert isinstance(dtype, torch.dtype)
    assert dtype.itemsize == size


def test_dtype_codes_are_what_they_were():
    """A code is a place in this list: it grows at its end only."""
    assert DTYPES[:16] == (
        *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool"),
        *("complex32", "complex64", "complex128", "uint16", "uint32", "uint64"),
    )
    assert DTYPES[16:20] == ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    assert len(set(DTYPES)) == len(DTYPES) == len(DTYPE_BYTES)


# --- damage ---


def mutated(place_in_head: int, value: int) -> bytes:
    data = bytearray(encode_meta(PAYLOAD_META))
    fields = list(HEAD.unpack_from(data))
    assert fields[place_in_head] != value
    fields[place_in_head] = value
    data[: HEAD.size] = HEAD.pack(*fields)
    return bytes(data)


HEAD_FIELDS = ("magic", "version", "pad", "payload bytes", "meta bytes", "storages", "views", "skeleton bytes", "pad")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", 0),
        ("magic", layout.MAGIC + 1),
        ("version", 0),
        ("version", 2),
        ("payload bytes", 0),
        ("payload bytes", PAYLOAD_META.payload_bytes - 1),
        ("meta bytes", 0),
        ("meta bytes", PAYLOAD_META.meta_bytes - 1),
        ("meta bytes", PAYLOAD_META.meta_bytes + 1),
        ("meta bytes", (1 << 64) - 1),
        ("storages", 0),
        ("storages", 2),
        ("storages", 4),
        ("storages", (1 << 32) - 1),
        ("views", 0),
        ("views", 3),
        ("views", 5),
        ("views", (1 << 32) - 1),
        ("skeleton bytes", 0),
        ("skeleton bytes", len(PAYLOAD_META.skeleton) + 1),
        ("skeleton bytes", (1 << 32) - 1),
    ],
)
@pytest.mark.parametrize("rest", [b"", b"\0" * 1000], ids=["alone", "in a payload"])
def test_a_damaged_head_is_refused(field, value, rest):
    with pytest.raises(ProtocolError):
        decode_meta(mutated(HEAD_FIELDS.index(field), value) + rest)


def test_a_meta_that_was_cut_short_is_refused():
    data = encode_meta(PAYLOAD_META)
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_meta(data[:length])
        with pytest.raises(ProtocolError):
            decode_meta(memoryview(data)[:length])


def test_a_storage_that_ends_beyond_the_payload_is_refused():
    first = HEAD.size
    for offset, size in [(PAYLOAD_META.payload_bytes, 1), (0, PAYLOAD_META.payload_bytes + 1), ((1 << 64) - 1, 1)]:
        data = bytearray(encode_meta(PAYLOAD_META))
        STORAGE_ENTRY.pack_into(data, first, offset, size, TENSOR, 0)
        with pytest.raises(ProtocolError, match="beyond its"):
            decode_meta(data)


def test_a_view_of_no_storage_or_of_no_dtype_is_refused():
    first = HEAD.size + STORAGE_ENTRY.size * len(PAYLOAD_META.storages)
    for storage, dtype in [(3, 0), ((1 << 32) - 1, 0), (0, len(DTYPES)), (0, (1 << 16) - 1)]:
        data = bytearray(encode_meta(PAYLOAD_META))
        VIEW_HEAD.pack_into(data, first, storage, dtype, 3, 0)
        with pytest.raises(ProtocolError, match=f"names storage {storage} and dtype {dtype}"):
            decode_meta(data)


@pytest.mark.parametrize("dimensions", [0, 2, 4, 65_535])
def test_a_view_with_another_number_of_dimensions_is_refused(dimensions):
    first = HEAD.size + STORAGE_ENTRY.size * len(PAYLOAD_META.storages)
    data = bytearray(encode_meta(PAYLOAD_META))
    VIEW_HEAD.pack_into(data, first, 0, 0, dimensions, 0)
    with pytest.raises(ProtocolError):
        decode_meta(data)


@given(st.data())
@tries(300)
def test_a_damaged_meta_is_refused_or_has_its_storages_within_the_told_payload(data):
    damaged = bytearray(encode_meta(PAYLOAD_META))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        meta = decode_meta(damaged)
    except ProtocolError:
        return
    told = HEAD.unpack_from(damaged)[3]
    assert meta.meta_bytes <= len(damaged)
    assert all(entry.offset + entry.storage_bytes <= told for entry in meta.storages)
    assert all(view.storage < len(meta.storages) and view.dtype < len(DTYPES) for view in meta.views)


@given(st.binary(max_size=200))
@tries(100)
def test_random_bytes_are_no_meta(data):
    with pytest.raises(ProtocolError):
        decode_meta(data)


@pytest.mark.parametrize(
    "payload",
    [mutated(0, 0), mutated(1, 2), mutated(4, (1 << 64) - 1), encode_meta(PAYLOAD_META)[:-1]],
    ids=["magic", "version", "length", "cut short"],
)
def test_the_length_of_what_is_no_meta_is_refused(payload):
    with pytest.raises(ProtocolError):
        meta_length(memoryview(payload))


@pytest.mark.parametrize("length", [0, 1, HEAD.size - 1])
def test_the_length_of_a_payload_too_short_for_a_head_is_refused(length):
    with pytest.raises(ProtocolError):
        meta_length(memoryview(encode_meta(PAYLOAD_META)[:length]))


# --- row layouts ---


def row_layout(rows: int, leaves: list[tuple[str, tuple[int, ...]]]) -> RowLayout:
    """A layout of dense leaves: (dtype name, shape of one sample) each."""
    sizes, views = [], []
    for name, shape in leaves:
        full = (rows, *shape)
        strides = tuple(math.prod(full[i + 1 :]) for i in range(len(full)))
        code = DTYPES.index(name)
        sizes.append((math.prod(full) * DTYPE_BYTES[code], TENSOR))
        views.append(ViewEntry(len(sizes) - 1, code, 0, full, strides))
    return RowLayout(rows, b"signature", layout_payload(sizes, tuple(views), b"skeleton"))


row_layouts = st.builds(
    row_layout,
    st.integers(1, 300),
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 9), max_size=3).map(tuple)), max_size=4),
)


@given(row_layouts)
@tries(100)
def test_a_row_layout_round_trips(rows):
    assert decode_row_layout(encode_row_layout(rows)) == rows


@given(row_layouts, st.data())
@tries(150)
def test_a_smaller_batch_keeps_its_storages_where_they_are_and_ends_earlier(rows, data):
    fewer = data.draw(st.integers(1, rows.rows))
    full, meta = rows.meta, rows.meta_for(fewer)
    assert [entry.offset for entry in meta.storages] == [entry.offset for entry in full.storages]
    assert meta.skeleton == full.skeleton
    assert meta.meta_bytes == full.meta_bytes
    assert meta.payload_bytes <= full.payload_bytes
    for view, whole in zip(meta.views, full.views, strict=True):
        assert view == dataclasses.replace(whole, shape=(fewer, *whole.shape[1:]))
        assert meta.storages[view.storage].storage_bytes == math.prod(view.shape) * DTYPE_BYTES[view.dtype]
    assert decode_meta(encode_meta(meta)) == meta


def test_a_full_batch_has_the_layout_s_own_meta():
    assert ROW_LAYOUT.meta_for(ROW_LAYOUT.rows) is ROW_LAYOUT.meta


def test_rows_of_a_smaller_batch_do_not_overlap():
    meta = row_layout(7, [("uint8", (3,)), ("float64", ()), ("int16", (2, 5))]).meta_for(2)
    ends = [(entry.offset, entry.offset + entry.storage_bytes) for entry in meta.storages]
    assert all(end <= following for (_, end), (following, _) in itertools.pairwise(ends))


def damaged_row_layout(**fields: object) -> bytes:
    known = {
        "version": layout.LAYOUT_VERSION,
        "rows": ROW_LAYOUT.rows,
        "signature": ROW_LAYOUT.signature,
        "meta": encode_meta(ROW_LAYOUT.meta),
    }
    return msgpack.packb(list((known | fields).values()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_row_layout(ROW_LAYOUT)[:-1],
        encode_row_layout(ROW_LAYOUT) + b"\0",
        msgpack.packb(None),
        msgpack.packb(4),
        msgpack.packb([]),
        msgpack.packb([1, 2, b""]),
        msgpack.packb([1, 2, b"", b"", 5]),
        damaged_row_layout(version=0),
        damaged_row_layout(version=2),
        damaged_row_layout(version=None),
        damaged_row_layout(meta=b""),
        damaged_row_layout(meta=b"\0" * 200),
        damaged_row_layout(meta=encode_meta(ROW_LAYOUT.meta)[:-1]),
    ],
    ids=repr,
)
def test_a_damaged_row_layout_is_refused(data):
    with pytest.raises(ProtocolError):
        decode_row_layout(data)


@pytest.mark.parametrize("meta", [None, 5, "text", [], {}], ids=repr)
def test_a_row_layout_whose_meta_is_no_bytes_is_refused(meta):
    with pytest.raises(ProtocolError):
        decode_row_layout(damaged_row_layout(meta=meta))


@pytest.mark.parametrize("rows", [None, "4", b"4", 4.0, 0, -1, [4]], ids=repr)
def test_a_row_layout_of_no_rows_is_refused(rows):
    """meta_for divides by it."""
    with pytest.raises(ProtocolError):
        decode_row_layout(damaged_row_layout(rows=rows))


@given(st.binary(max_size=100))
@tries(100)
def test_random_bytes_are_no_row_layout(data):
    with pytest.raises(ProtocolError):
        decode_row_layout(data)


def test_formats_have_the_sizes_that_the_picture_tells():
    sizes = {"head": HEAD.size, "storage table": STORAGE_ENTRY.size}
    for area, size in sizes.items():
        assert f"{size} bytes" in next(line for line in layout.__doc__.splitlines() if f"| {area}:" in line)
    assert f"storages, each aligned to {STORAGE_ALIGNMENT}" in layout.__doc__
    assert struct.pack("<I", layout.MAGIC) == b"PFDB"


def test_kinds_are_apart():
    assert (TENSOR, BUFFER) == (0, 1)
    assert StorageEntry(0, 0).kind == TENSOR
