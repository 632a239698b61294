"""A status segment with any bytes in it is told of in words, or says nothing yet."""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.status import snapshot
from prefetchd.status.snapshot import Report, read_report
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths
from prefetchd.wire.status_layout import COPY_HEAD, HEAD, STATUS_BYTES, StatusHead, copy_offset, encode_head
from tests.budgets import tries

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TOLD = VALUES | st.fixed_dictionaries({"daemon": VALUES | st.fixed_dictionaries({"start_ticks": VALUES})})


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> RuntimePaths:
    found = runtime_paths(tmp_path_factory.mktemp("wild") / f"{uuid.uuid4().hex[:8]}.sock")
    yield found
    os.unlink("/dev/shm" + found.status_segment)


def report_of(paths: RuntimePaths, content: bytes, length: int) -> Report | None:
    """What a reader says of such a segment; None when that is an error in words."""
    with open("/dev/shm" + paths.status_segment, "wb") as file:
        file.write(content)
        file.truncate(length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_ATTEMPTS", 1)
        try:
            return read_report(paths)
        except ProtocolError:
            return None


@given(st.binary(max_size=200), st.integers(0, STATUS_BYTES))
@tries(100)
def test_bytes_that_are_no_status(paths, content, length):
    assert report_of(paths, content, length) is None


@given(TOLD, st.integers(0, (1 << 64) - 1), st.integers(0, 3))
@tries(200)
def test_a_status_that_says_anything(paths, told, heartbeat_ns, current):
    text = json.dumps(told).encode()
    copy = COPY_HEAD.pack(len(text), zlib.crc32(text)) + text
    head = encode_head(StatusHead(1, 1, heartbeat_ns, current))
    report = report_of(paths, head.ljust(copy_offset(min(current, 1)), b"\0") + copy, STATUS_BYTES)
    if report is not None:
        assert report.state in ("running", "hanging", "dead")


@given(st.integers(0, 300), st.integers(1, 255), st.integers(0, (1 << 32) - 1))
@tries(200)
def test_a_status_that_is_damaged(paths, at, changed, length):
    text = json.dumps({"daemon": {"start_ticks": 5}}).encode()
    whole = bytearray(encode_head(StatusHead(1, 1, 1)).ljust(copy_offset(0), b"\0"))
    whole += COPY_HEAD.pack(len(text), zlib.crc32(text)) + text
    place = at if at < HEAD.size else copy_offset(0) + at % (COPY_HEAD.size + len(text))
    whole[place] ^= changed
    if at % 3 == 0:
        struct.pack_into("<I", whole, copy_offset(0), length)
    report_of(paths, bytes(whole), STATUS_BYTES)


def test_deep_nests_are_no_status(paths):
    text = b"[" * 100_000
    copy = COPY_HEAD.pack(len(text), zlib.crc32(text)) + text
    content = encode_head(StatusHead(1, 1, 1)).ljust(copy_offset(0), b"\0") + copy
    assert report_of(paths, content, STATUS_BYTES) is None
