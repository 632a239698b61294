"""A ring's mapping: whoever hands a descriptor over need not close it, whatever comes of it."""

from __future__ import annotations

import mmap
import os

import pytest

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import HEADER_BYTES, PAGE_BYTES, SegmentHeader, encode_header


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def file(content: bytes, size: int) -> int:
    """A descriptor of a file that begins with `content`."""
    fd = os.memfd_create("ring")
    os.ftruncate(fd, size)
    os.pwrite(fd, content, 0)
    return fd


def a_header() -> SegmentHeader:
    return SegmentHeader(4, PAGE_BYTES, 1, 1, "0" * 32, 0, 0, "")


def test_it_lets_all_go_when_it_is_closed():
    before = descriptors()
    header = a_header()
    ring = RingMemory(file(encode_header(header), header.segment_bytes))
    assert ring.header == header
    ring.close()
    ring.close()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("content", "size", "error"),
    [
        (b"", HEADER_BYTES - 1, "too short for its header"),
        (b"another program's", HEADER_BYTES, "wrong magic"),
        (encode_header(a_header()), HEADER_BYTES, "damaged"),
    ],
    ids=["short", "no ring", "cut off"],
)
def test_a_file_that_is_no_ring_is_closed_at_once(content, size, error):
    before = descriptors()
    with pytest.raises(ProtocolError, match=error) as caught:
        RingMemory(file(content, size))
    assert descriptors() == before, f"{caught.value} keeps them"


def test_one_that_cannot_be_mapped_is_closed_too(monkeypatch):
    def fail(*_: int) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", fail)
    before = descriptors()
    with pytest.raises(OSError, match="Cannot allocate"):
        RingMemory(file(b"", HEADER_BYTES))
    assert descriptors() == before
