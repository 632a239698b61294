"""The ring on a node: what workers there map is a ring like any other."""

from __future__ import annotations

import os

import pytest

from prefetchd.remote.node_ring import NodeRing
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import (
    ROW_LAYOUT_OFFSET,
    SLOT_FILLING,
    SPEC_OFFSET,
    SlotRecord,
    decode_slot_record,
)

SLOT_BYTES = 8192
FINGERPRINT = "ab" * 16


@pytest.fixture
def ring():
    made = NodeRing(3, SLOT_BYTES, FINGERPRINT, b"the spec", b"the layout")
    yield made
    made.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_worker_finds_a_ring_with_all_of_its_memory(ring):
    memory = RingMemory(os.dup(ring.fd))
    header = memory.header
    assert (header.slots, header.slot_bytes, header.fingerprint) == (3, SLOT_BYTES, FINGERPRINT)
    assert memory.reserved_slots == 3
    assert memory.is_whole
    assert os.fstat(ring.fd).st_blocks * 512 >= header.segment_bytes, "memory that is only promised ends in SIGBUS"
    memory.close()


def test_the_spec_and_the_layout_are_where_workers_look_for_them(ring):
    memory = RingMemory(os.dup(ring.fd))
    header = memory.header
    assert memory.memory[SPEC_OFFSET : SPEC_OFFSET + header.spec_bytes] == b"the spec"
    assert memory.memory[ROW_LAYOUT_OFFSET : ROW_LAYOUT_OFFSET + header.row_layout_bytes] == b"the layout"
    assert ring.layout == b"the layout"
    memory.close()


def test_every_slot_may_be_filled(ring):
    memory = RingMemory(os.dup(ring.fd))
    for slot in range(3):
        at = memory.header.slot_record_offset(slot)
        assert decode_slot_record(memory.memory, at) == SlotRecord(SLOT_FILLING)
    memory.close()


def test_what_a_worker_writes_is_the_slot_s_payload_and_no_other_s(ring):
    memory = RingMemory(os.dup(ring.fd))
    for slot in range(3):
        memory.batch(slot)[:] = bytes([slot + 1]) * SLOT_BYTES
    assert [bytes(ring.payload(slot)) for slot in range(3)] == [bytes([slot + 1]) * SLOT_BYTES for slot in range(3)]
    memory.close()


def test_it_has_no_name_and_ends_with_its_process(ring):
    assert "memfd:" in os.readlink(f"/proc/self/fd/{ring.fd}")


def test_closing_it_lets_everything_go():
    before = open_descriptors()
    made = NodeRing(1, SLOT_BYTES, FINGERPRINT, b"", b"")
    made.close()
    made.close()
    assert open_descriptors() == before


def test_where_there_is_no_memory_that_is_said_and_nothing_is_kept(monkeypatch):
    def full(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_descriptors()
    with pytest.raises(OSError, match="Cannot allocate"):
        NodeRing(1, SLOT_BYTES, FINGERPRINT, b"", b"")
    assert open_descriptors() == before
