"""The status segment's format: what was written is read, and what is half written is not."""

from __future__ import annotations

import pytest

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.status_layout import (
    COPY_BYTES,
    CURRENT_OFFSET,
    HEAD,
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    STATUS_BYTES,
    StatusHead,
    copy_offset,
    decode_head,
    decode_snapshot,
    encode_head,
    encode_snapshot,
)

SNAPSHOT = {"streams": [], "text": "Ж", "number": 1.5}


@pytest.fixture
def segment():
    return bytearray(STATUS_BYTES)


def put(segment, copy, snapshot):
    data = encode_snapshot(snapshot)
    segment[copy_offset(copy) : copy_offset(copy) + len(data)] = data


@pytest.mark.parametrize("copy", [0, 1])
def test_a_snapshot_comes_back_from_its_copy_alone(segment, copy):
    put(segment, copy, SNAPSHOT)
    assert decode_snapshot(segment, copy) == SNAPSHOT
    assert decode_snapshot(segment, 1 - copy) is None


def test_a_copy_that_nobody_has_written_yet_holds_no_snapshot(segment):
    assert decode_snapshot(segment, 0) is None


def test_a_snapshot_that_is_being_overwritten_is_none(segment):
    put(segment, 0, SNAPSHOT)
    segment[copy_offset(0) + 20] ^= 1
    assert decode_snapshot(segment, 0) is None


def test_a_length_beyond_the_copy_is_none(segment):
    put(segment, 0, SNAPSHOT)
    segment[copy_offset(0) : copy_offset(0) + 4] = b"\xff" * 4
    assert decode_snapshot(segment, 0) is None


def test_the_longest_snapshot_fits_and_a_longer_one_is_an_error(segment):
    room = COPY_BYTES - len(encode_snapshot({"x": ""}))
    put(segment, 1, {"x": "y" * room})
    assert len(decode_snapshot(segment, 1)["x"]) == room
    with pytest.raises(ProtocolError, match=f"allowed: {COPY_BYTES}"):
        encode_snapshot({"x": "y" * (room + 1)})


def test_the_head_comes_back_and_its_fields_lie_where_they_are_patched():
    head = StatusHead(4711, 3, 1 << 50, 1)
    data = bytearray(encode_head(head))
    assert decode_head(data) == head
    HEARTBEAT.pack_into(data, HEARTBEAT_OFFSET, 99)
    data[CURRENT_OFFSET : CURRENT_OFFSET + 4] = (0).to_bytes(4, "little")
    assert decode_head(data) == StatusHead(4711, 3, 99, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(HEAD.size - 1),
        bytes(HEAD.size),
        HEAD.pack(b"PFDSTAT\0", 2, 1, 1, 1, 0),
        HEAD.pack(b"PFDRING\0", 1, 1, 1, 1, 0),
        HEAD.pack(b"PFDSTAT\0", 1, 1, 1, 1, 2),
    ],
    ids=["empty", "short", "zeros", "version", "magic", "copy"],
)
def test_what_is_no_head_is_refused(data):
    with pytest.raises(ProtocolError, match="status segment"):
        decode_head(data)
