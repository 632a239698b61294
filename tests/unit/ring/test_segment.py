"""The ring's segment: private, locked while its daemon lives, reserved before it is used, gone when it is given up."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid

import psutil
import pytest

from prefetchd.ring import segment as segment_module
from prefetchd.ring.segment import RingSegment, is_named, new_header, unlink
from prefetchd.wire.errors import NoSpaceError
from prefetchd.wire.file_locks import is_locked, reopen, try_lock
from prefetchd.wire.messages import Published
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import (
    DAEMON_LOCK_OFFSET,
    HEADER_BYTES,
    MARK,
    OFFER,
    PAGE_BYTES,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    ROW_LAYOUT_OFFSET,
    SLOT_FILLING,
    SLOT_READY,
    SPEC_OFFSET,
    SlotRecord,
    decode_header,
    decode_slot_record,
)

SPEC, LAYOUT = b"the stream's spec", b"its row layout"


@pytest.fixture
def name():
    found = f"/prefetchd-test-{uuid.uuid4().hex[:12]}"
    yield found
    unlink(found)


@pytest.fixture
def make(name):
    """Makes the ring; closes what was made."""
    with contextlib.ExitStack() as stack:

        def made(slots: int = 8, slot_bytes: int = PAGE_BYTES, wanted: int | None = None) -> RingSegment:
            header = new_header(slots, slot_bytes, "ab" * 16, 3, SPEC, LAYOUT, "/the-program")
            ring = RingSegment.create(name, header, SPEC, LAYOUT, slots if wanted is None else wanted)
            stack.callback(ring.close)
            return ring

        yield made


def reserve(ring: RingSegment) -> list[int]:
    steps = []
    while not ring.is_reserved:
        steps.append(ring.reserve_step())
    return steps


def told_slots(ring: RingSegment) -> int:
    return RESERVED_SLOTS.unpack_from(ring.memory.memory, RESERVED_SLOTS_OFFSET)[0]


def resident_bytes(name: str) -> int:
    """What the segment really takes of memory."""
    return os.stat("/dev/shm" + name).st_blocks * 512


def resident_pages(ring: RingSegment) -> int:
    """The pages of this process's mapping of the ring that it need not fault in any more."""
    found = []
    for mapping in psutil.Process().memory_maps(grouped=False):
        if mapping.path == f"/dev/shm{ring.name}":
            found.append(mapping.rss // PAGE_BYTES)
    return sum(found)


def prefaulted_pages(ring: RingSegment) -> int:
    """Prefaults until it is no longer due; returns how many pages have become resident."""
    before = resident_pages(ring)
    while ring.is_prefault_due:
        ring.prefault_step()
    return resident_pages(ring) - before


# --- made ---


def test_a_new_segment_is_private_and_has_its_size_header_spec_and_layout(make, name):
    ring = make()
    found = os.stat("/dev/shm" + name)
    assert found.st_mode & 0o777 == 0o600
    assert found.st_size == ring.header.segment_bytes
    with open("/dev/shm" + name, "rb") as file:
        content = file.read()
    assert decode_header(content[:HEADER_BYTES], len(content)) == ring.header
    assert content[SPEC_OFFSET:].startswith(SPEC)
    assert content[ROW_LAYOUT_OFFSET:].startswith(LAYOUT)
    assert ring.header.created_ns > 0


def test_a_ring_whose_directory_cannot_be_asked_has_no_name(tmp_path):
    """Found as a daemon that ended, and all its rings with it: a file stood where one stream's RAM disk had been."""
    named = tmp_path / "disk" / "ring"
    named.parent.mkdir()
    with named.open("wb") as file:
        assert is_named("/ring", file.fileno(), str(named.parent))
        named.unlink()
        named.parent.rmdir()
        named.parent.touch()
        assert not is_named("/ring", file.fileno(), str(named.parent))


@pytest.mark.parametrize("name_then", ["/the-program", ""])
def test_who_reads_while_its_program_is_named_finds_the_name_or_none(make, name_then):
    """Found as a worker that took the ring for a damaged one: it was lent it in that moment."""
    ring = make()
    ring.name_program(name_then)
    found = []

    class Watched:
        def __init__(self, memory):
            self.memory = memory

        def __setitem__(self, place, data):
            # A copy of several bytes may be seen half done.
            for part in range(len(data)):
                self.memory[place.start : place.start + part] = data[:part]
                found.append(decode_header(self.memory[:HEADER_BYTES], len(self.memory)).program_name)
            self.memory[place] = data
            found.append(decode_header(self.memory[:HEADER_BYTES], len(self.memory)).program_name)

    memory = ring.memory.memory
    ring.memory.memory = Watched(memory)
    ring.name_program("/another-and-longer")
    ring.memory.memory = memory
    assert set(found) == {name_then, "", "/another-and-longer"}
    assert found[-1] == "/another-and-longer"
    assert ring.header.program_name == "/another-and-longer"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_umask_does_not_open_it(make, name, mask):
    before = os.umask(mask)
    try:
        make()
    finally:
        os.umask(before)
    assert os.stat("/dev/shm" + name).st_mode & 0o077 == 0


def test_a_name_that_is_taken_is_told_and_left_alone(make, name):
    first = make()
    with pytest.raises(FileExistsError, match=name):
        make()
    assert os.stat("/dev/shm" + name).st_ino == os.fstat(first.shared_fd).st_ino


def test_its_lock_is_held_until_it_is_closed_and_not_by_those_who_share_it(make):
    ring = make()
    shared = os.dup(ring.shared_fd)
    other = reopen(shared)
    assert is_locked(other, DAEMON_LOCK_OFFSET)
    ring.close()
    assert not is_locked(other, DAEMON_LOCK_OFFSET), "the descriptor that was passed on holds nothing"
    os.close(shared)
    os.close(other)


def test_all_its_descriptors_are_closed_on_exec(make):
    before = set(os.listdir("/proc/self/fd"))
    make()
    for fd in set(os.listdir("/proc/self/fd")) - before:
        with contextlib.suppress(OSError):
            assert not os.get_inheritable(int(fd))


def test_closing_leaves_neither_name_nor_descriptor_and_what_is_mapped_stays(make, name):
    before = len(os.listdir("/proc/self/fd"))
    ring = make()
    reserve(ring)
    mapped = RingMemory(reopen(ring.shared_fd))
    ring.memory.batch(3)[:5] = b"hello"
    ring.close()
    assert not os.path.exists("/dev/shm" + name)
    assert bytes(mapped.batch(3)[:5]) == b"hello"
    mapped.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_closing_may_leave_the_name_to_a_successor(make, name):
    make().close(unlink_name=False)
    assert os.path.exists("/dev/shm" + name)


def test_unlinking_what_is_gone_is_harmless(name):
    unlink(name)


# --- reserved ---


def test_of_its_slots_and_their_tables_nothing_is_reserved_at_first(make, name):
    ring = make(slots=60_000, wanted=10)
    assert told_slots(ring) == 0
    assert not ring.is_reserved
    assert resident_bytes(name) < 20 * PAGE_BYTES < ring.header.payload_offset
    reserve(ring)
    assert resident_bytes(name) < 60 * PAGE_BYTES
    assert abs(resident_bytes(name) - ring.header.bytes_with(10)) < 40 * PAGE_BYTES
    while not ring.prefault_step():
        pass
    assert resident_bytes(name) < 60 * PAGE_BYTES


def test_what_is_reserved_has_its_places_in_all_tables(make, name):
    """Else a full store would end whoever writes there, with SIGBUS."""
    ring = make(slots=60_000, wanted=20_000)
    reserve(ring)
    before = resident_bytes(name)
    for slot in (0, 9_999, 19_999):
        ring.write_slot(slot, SlotRecord(SLOT_FILLING, generation=slot + 1))
        for consumer in range(ring.header.consumers):
            MARK.pack_into(ring.memory.memory, ring.header.mark_offset(consumer, slot), 7)
    assert [len(ring.marks(consumer)) for consumer in (0, 15)] == [20_000, 20_000]
    assert resident_bytes(name) == before


def test_each_step_makes_some_more_slots_usable(make, name, monkeypatch):
    monkeypatch.setattr(segment_module, "RESERVE_STEP_BYTES", 5 * PAGE_BYTES)
    ring = make(slots=8, slot_bytes=2 * PAGE_BYTES)
    steps = []
    while not ring.is_reserved:
        steps.append(ring.reserve_step())
        assert told_slots(ring) == steps[-1]
        assert resident_bytes(name) >= ring.header.bytes_with(steps[-1])
    assert steps == [2, 5, 7, 8]


def test_a_step_when_all_is_reserved_changes_nothing(make):
    ring = make()
    reserve(ring)
    assert ring.reserve_step() == 8
    assert told_slots(ring) == 8


def test_a_ring_is_reserved_up_to_what_is_wanted_and_grows(make, name):
    ring = make(slots=100, wanted=10)
    assert reserve(ring) == [10]
    assert resident_bytes(name) < ring.header.bytes_with(11) + 20 * PAGE_BYTES
    ring.memory.batch(9)[:3] = b"old"
    ring.grow(40)
    assert not ring.is_reserved
    assert reserve(ring) == [40]
    assert bytes(ring.memory.batch(9)[:3]) == b"old"
    ring.grow(20)
    assert ring.is_reserved, "it does not shrink"
    ring.grow(1000)
    assert reserve(ring) == [100]
    assert told_slots(ring) == 100


def test_a_ring_that_shrinks_gives_up_the_memory_behind_its_last_slots_and_may_have_it_again(make, name):
    ring = make(slots=100, wanted=40)
    assert reserve(ring) == [40]
    for slot in range(40):
        ring.memory.batch(slot)[:3] = b"old"
    before = resident_bytes(name)
    ring.shrink(10)
    assert told_slots(ring) == ring.wanted_slots == 10
    assert ring.is_reserved
    assert before - resident_bytes(name) == 30 * ring.header.slot_bytes
    assert bytes(ring.memory.batch(9)[:3]) == b"old"
    assert bytes(ring.memory.batch(10)[:3]) == b"\0\0\0"
    ring.grow(20)
    assert reserve(ring) == [20]
    assert bytes(ring.memory.batch(19)[:3]) == b"\0\0\0"


def test_no_record_of_a_slot_that_was_given_up_tells_of_a_batch_once_it_has_memory_again(make):
    ring = make(slots=100, wanted=40)
    reserve(ring)
    for slot in (9, 10, 39):
        ring.write_slot(slot, SlotRecord(SLOT_READY, 1, 7, 0, slot, 3))
    ring.shrink(10)
    ring.grow(40)
    reserve(ring)
    # What is behind the others is empty: a daemon that adopted them would hand out zeros.
    assert [slot for slot, record in enumerate(ring.slot_records()) if record.state == SLOT_READY] == [9]


def test_what_is_pinned_stays_where_it_is(make, name):
    ring = make(slots=100, wanted=40)
    reserve(ring)
    ring.memory.batch(39)[:3] = b"old"
    before = resident_bytes(name)
    ring.shrink(10, keeps_memory=True)
    assert (told_slots(ring), resident_bytes(name)) == (10, before)
    ring.grow(40)
    assert reserve(ring) == [40]
    assert bytes(ring.memory.batch(39)[:3]) == b"old"


def test_memory_that_a_dead_daemon_has_counted_out_and_not_given_up_is_given_up_by_the_next(make, name):
    ring = make(slots=100, wanted=40)
    reserve(ring)
    before = resident_bytes(name)
    ring.shrink(10, keeps_memory=True)
    ring.close(unlink_name=False)
    fd = os.open(f"/dev/shm{name}", os.O_RDWR)
    assert try_lock(fd, DAEMON_LOCK_OFFSET)
    adopted = RingSegment.adopt(name, fd, 2)
    try:
        assert before - resident_bytes(name) == 30 * adopted.header.slot_bytes
        assert adopted.reserved_slots == adopted.wanted_slots == 10
    finally:
        adopted.close()


def full_after(free_bytes: int):
    """posix_fallocate on a file system that has so much left."""
    really = os.posix_fallocate

    def fallocate(fd: int, offset: int, length: int) -> None:
        if offset + length > free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(fd, offset, length)

    return fallocate


def test_no_room_for_the_records_is_told_and_leaves_nothing(make, name, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_after(0))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NoSpaceError, match=r"0 B of 8\.0 MiB could be reserved .*Lower buffer=, or enlarge /dev/shm"):
        make(slots=8, slot_bytes=1 << 20)
    assert not os.path.exists("/dev/shm" + name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_room_for_a_slot_is_told_and_what_was_reserved_can_be_used(make, monkeypatch):
    monkeypatch.setattr(segment_module, "RESERVE_STEP_BYTES", 1 << 20)
    ring = make(slots=8, slot_bytes=1 << 20)
    monkeypatch.setattr(os, "posix_fallocate", full_after(ring.header.slot_payload_offset(3)))
    assert [ring.reserve_step() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(NoSpaceError, match=r"shared memory is full: 3\.0 MiB of 8\.0 MiB .*No space left on device"):
        ring.reserve_step()
    assert told_slots(ring) == 3
    ring.memory.batch(2)[:4] = b"used"


def test_a_failure_half_way_leaves_nothing(make, name, monkeypatch):
    def fail(fd: int) -> None:
        os.close(fd)
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_module, "RingMemory", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        make()
    assert not os.path.exists("/dev/shm" + name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_without_descriptors_left_is_told(make, name, monkeypatch):
    def none_left(fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(segment_module, "reopen", none_left)
    with pytest.raises(NoSpaceError, match="Too many open files"):
        make()
    assert not os.path.exists("/dev/shm" + name)


# --- prefaulted ---


def test_prefaulting_makes_resident_what_is_needed_next_and_changes_nothing(make, monkeypatch):
    monkeypatch.setattr(segment_module, "PREFAULT_STEP_BYTES", PAGE_BYTES)
    monkeypatch.setattr(segment_module, "PREFAULT_AHEAD_BYTES", 3 * PAGE_BYTES)
    ring = make(slots=20, wanted=10)
    assert not ring.is_prefault_due, "nothing is reserved yet"
    reserve(ring)
    ring.memory.batch(7)[:5] = b"seven"
    assert prefaulted_pages(ring) == 3, "what is ahead of the first slot"
    ring.write_slot(0, SlotRecord(SLOT_FILLING, generation=1))
    assert prefaulted_pages(ring) == 1
    ring.write_slot(0, SlotRecord(SLOT_FILLING, generation=2))
    assert prefaulted_pages(ring) == 0, "it is the same slot"
    for slot in range(10):
        ring.write_slot(slot, SlotRecord(SLOT_FILLING, generation=3 + slot))
    assert prefaulted_pages(ring) == 5, "no further than is reserved; slot 7 was resident"
    assert bytes(ring.memory.batch(7)[:5]) == b"seven"
    ring.grow(20)
    reserve(ring)
    assert prefaulted_pages(ring) == 3, "what was added is to be made resident too"


def test_two_slots_are_made_resident_ahead_however_large_they_are(make, monkeypatch):
    monkeypatch.setattr(segment_module, "PREFAULT_STEP_BYTES", PAGE_BYTES)
    monkeypatch.setattr(segment_module, "PREFAULT_AHEAD_BYTES", PAGE_BYTES)
    ring = make(slots=5, slot_bytes=4 * PAGE_BYTES)
    reserve(ring)
    assert prefaulted_pages(ring) == 8


def test_prefaulting_on_a_kernel_that_cannot_populate(make, monkeypatch):
    monkeypatch.setattr(segment_module, "_MADV_POPULATE_WRITE", 9999)
    ring = make()
    reserve(ring)
    ring.memory.batch(2)[:3] = b"two"
    assert ring.prefault_step()
    assert bytes(ring.memory.batch(2)[:3]) == b"two"


# --- records ---


def test_a_slot_s_record_and_nothing_else_is_written(make):
    ring = make()
    before = bytes(ring.memory.memory)
    record = SlotRecord(SLOT_READY, 1, generation=7, epoch=1, step=2, payload_bytes=99, digest=5)
    ring.write_slot(3, record)
    offset = ring.header.slot_record_offset(3)
    after = bytes(ring.memory.memory)
    assert decode_slot_record(after, offset) == record
    assert after[:offset] + after[offset + 64 :] == before[:offset] + before[offset + 64 :]


def test_offers_lie_in_the_segment_and_end_with_the_slot_s_next_claim(make):
    ring = make(slots=5)
    ring.offers.record(3, Published(((1, 0, 0, 0, 4, 9),)))
    ring.offers.record(0, Published(((1, 0, 0, 1, 4, 9, 2, 8),)))
    at = ring.header.offers_offset
    assert OFFER.unpack_from(ring.memory.memory, at + 4 * OFFER.size) == (1 << 19 | 1,)
    assert ring.offers.words(5) == (0, 0, 1, 0, 1 << 19 | 1)
    ring.write_slot(4, SlotRecord(SLOT_READY, generation=9))
    assert ring.offers.words(5)[4]
    ring.write_slot(4, SlotRecord(SLOT_FILLING, generation=10))
    assert ring.offers.words(5) == (0, 0, 1, 0, 0)
    ring.close()


def test_marks_are_a_generation_a_slot(make):
    ring = make(slots=5)
    reserve(ring)
    assert ring.marks(0) == (0,) * 5
    MARK.pack_into(ring.memory.memory, ring.header.mark_offset(2, 4), 77)
    MARK.pack_into(ring.memory.memory, ring.header.mark_offset(2, 0), 1 << 63)
    assert ring.marks(2) == (1 << 63, 0, 0, 0, 77)
    assert ring.marks(1) == ring.marks(3) == (0,) * 5
    ring.close()
