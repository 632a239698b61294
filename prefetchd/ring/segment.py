"""Owns the memory behind a ring: the daemon makes, locks, reserves, prefaults and unlinks it.

Owned means: the daemon holds the lock on DAEMON_LOCK_OFFSET through a description that it never passes on, so that the
lock ends with the daemon and with nobody else. Clients get another description. Workers get a third, which has a lock
on WRITERS_LOCK_OFFSET from before the first of them is given it, and until the last of them is gone: messages on their
way count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import mmap
import os
import time
from typing import TYPE_CHECKING

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.ring.offers import Offers
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.errors import InvariantError, NoSpaceError, ProtocolError
from prefetchd.wire.file_locks import is_locked, reopen, try_lock
from prefetchd.wire.os_errors import why
from prefetchd.wire.ring_memory import RingMemory, map_shared
from prefetchd.wire.runtime_paths import SHARED_MEMORY
from prefetchd.wire.segment_layout import (
    CONSUMER_LOCK_OFFSET,
    DAEMON_LOCK_OFFSET,
    HEADER_BYTES,
    MARK,
    OFFER,
    PROGRAM_NAME_OFFSET,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    ROW_LAYOUT_OFFSET,
    SLOT_READY,
    SLOT_RECORDS_OFFSET,
    SPEC_OFFSET,
    WANTED_SLOTS_OFFSET,
    WRITERS_LOCK_OFFSET,
    ConsumerRecord,
    SegmentHeader,
    SlotRecord,
    decode_consumer_record,
    decode_header,
    decode_slot_record,
    encode_header,
    encode_slot_record,
)

if TYPE_CHECKING:
    from typing_extensions import Self

RESERVE_STEP_BYTES = 8 << 20
PREFAULT_STEP_BYTES = 4 << 20
PREFAULT_AHEAD_BYTES = 64 << 20
PREFAULT_AHEAD_SLOTS = 2
_MADV_POPULATE_WRITE = 23


class RingSegment:
    """The segment of one stream's ring: made by create(), or taken over from a dead daemon by adopt(). A file `name` in
    `directory`, which is that of POSIX shared memory or a RAM disk: a tmpfs, or another whose pages are larger.

    Then call reserve_step() until it is done: each makes more slots usable. Then prefault_step() while it is due, which
    may be again after any write_slot(); it is only for speed. Both take a few milliseconds a call.
    """

    def __init__(self, name: str, fd: int, header: SegmentHeader, wanted_slots: int, directory: str) -> None:
        """Called by create() and adopt(). Takes over `fd`, which has the daemon's lock; on an error it stays theirs."""
        self.name = name
        self.directory = directory
        self.wanted_slots = wanted_slots
        self.header = header
        self._fd = fd
        self._reserved_bytes = header.payload_offset
        self._prefaulted_bytes = header.payload_offset
        # The ring gives out its first slots first, so this is the most that was in use at a time.
        self._used_slots = 0
        with contextlib.ExitStack() as undo:
            self.shared_fd = reopen(fd)
            undo.callback(os.close, self.shared_fd)
            self.writers_fd = reopen(fd)
            undo.callback(os.close, self.writers_fd)
            try_lock(self.writers_fd, WRITERS_LOCK_OFFSET, shared=True)
            self.memory = RingMemory(reopen(fd))
            undo.pop_all()
        end = header.offers_offset + header.slots * OFFER.size
        self._words = memoryview(self.memory.memory)[header.offers_offset : end].cast("I")
        self.offers = Offers(self._words)

    @classmethod
    def create(
        cls,
        name: str,
        header: SegmentHeader,
        spec: bytes,
        row_layout: bytes,
        wanted_slots: int,
        directory: str = SHARED_MEMORY,
    ) -> Self:
        """Makes a new segment, mode 0600, with header, spec and layout in it and no slot reserved. Of the header's
        slots, `wanted_slots` will be reserved at first. Raises NoSpaceError, and FileExistsError when the name is
        taken."""
        fd = _make(name, directory)
        try:
            page_bytes = os.fstatvfs(fd).f_bsize
            # Large pages are had whole or not at all.
            os.ftruncate(fd, -(-header.segment_bytes // page_bytes) * page_bytes)
            wanted_bytes = header.bytes_with(wanted_slots)
            for begin, end in ((0, SLOT_RECORDS_OFFSET), (header.consumer_records_offset, header.marks_offset)):
                _reserve(fd, begin, end, directory, 0, wanted_bytes)
            if not try_lock(fd, DAEMON_LOCK_OFFSET):
                raise InvariantError(f"the new segment {name} is locked by somebody")
            # Mapped, as a hugetlbfs has no write(2).
            with map_shared(fd, os.fstat(fd).st_size) as memory:
                memory[SPEC_OFFSET : SPEC_OFFSET + len(spec)] = spec
                memory[ROW_LAYOUT_OFFSET : ROW_LAYOUT_OFFSET + len(row_layout)] = row_layout
                RESERVED_SLOTS.pack_into(memory, WANTED_SLOTS_OFFSET, wanted_slots)
                kill_point("daemon.ring.headless")
                # The header last: without it nobody takes this for a ring.
                encoded = encode_header(header)
                memory[: len(encoded)] = encoded
            return cls(name, fd, header, wanted_slots, directory)
        except BaseException as error:
            os.close(fd)
            unlink(name, directory)
            if isinstance(error, OSError):
                raise NoSpaceError(
                    f"a ring of {header.segment_bytes >> 20} MiB cannot be made ({why(error)}). Lower buffer=, or "
                    "raise the daemon's limits (ulimit -a)"
                ) from None
            raise

    @classmethod
    def adopt(cls, name: str, fd: int, daemon_generation: int, directory: str = SHARED_MEMORY) -> Self:
        """Takes over the segment `name` of a dead daemon behind `fd`, which has the lock by now and is taken over,
        whatever happens. Raises ProtocolError when it is no whole ring of this version, and OSError."""
        try:
            size = os.fstat(fd).st_size
            header = decode_header(os.pread(fd, HEADER_BYTES, 0), size)
            reserved, wanted = (
                RESERVED_SLOTS.unpack(os.pread(fd, RESERVED_SLOTS.size, offset))[0]
                for offset in (RESERVED_SLOTS_OFFSET, WANTED_SLOTS_OFFSET)
            )
            if max(reserved, wanted) > header.slots:
                raise ProtocolError(f"a ring of {header.slots} slots tells of {reserved} reserved ones of {wanted}")
            header = dataclasses.replace(header, daemon_generation=daemon_generation)
            ring = cls(name, fd, header, max(reserved, wanted), directory)
        except BaseException:
            os.close(fd)
            raise
        # Before consumers' bytes are looked at: a consumer locks its byte and then reads this, so that one of the two
        # sees the other (decision 0017).
        ring._write_header(header)
        kill_point("daemon.adopt.headed")
        ring._reserved_bytes = ring._prefaulted_bytes = header.slot_payload_offset(reserved)
        # The dead daemon may have counted slots out, and not come to their memory.
        ring._free_unreserved()
        return ring

    def name_program(self, name: str) -> None:
        """Writes the name of the program that makes the ring's batches into the header. Others may read that just now:
        they find the name, or none."""
        header = dataclasses.replace(self.header, program_name=name)
        field = encode_header(header)[PROGRAM_NAME_OFFSET:]
        memory, first = self.memory.memory, PROGRAM_NAME_OFFSET
        # The first byte last: where it is NUL there is no name, whatever follows.
        memory[first : first + 1] = b"\0"
        memory[first + 1 : first + len(field)] = field[1:]
        memory[first : first + 1] = field[:1]
        self.header = header

    def identify(self, fingerprint: str, spec: bytes) -> None:
        """Writes the fingerprint, which has become known: `spec` is what the ring was made with, with this fingerprint,
        and as long as it was. It counts when both places have it."""
        assert len(spec) == self.header.spec_bytes
        self.memory.memory[SPEC_OFFSET : SPEC_OFFSET + len(spec)] = spec
        kill_point("daemon.ring.unidentified")
        self._write_header(dataclasses.replace(self.header, fingerprint=fingerprint))

    def _write_header(self, header: SegmentHeader) -> None:
        encoded = encode_header(header)
        self.memory.memory[: len(encoded)] = encoded
        self.header = header

    @property
    def is_whole(self) -> bool:
        """False when somebody has made the file shorter: nothing of it may be touched any more."""
        return self.memory.is_whole

    @property
    def spec(self) -> bytes:
        return bytes(self.memory.memory[SPEC_OFFSET : SPEC_OFFSET + self.header.spec_bytes])

    @property
    def row_layout(self) -> bytes:
        return bytes(self.memory.memory[ROW_LAYOUT_OFFSET : ROW_LAYOUT_OFFSET + self.header.row_layout_bytes])

    @property
    def reserved_slots(self) -> int:
        return (self._reserved_bytes - self.header.payload_offset) // self.header.slot_bytes

    def slot_records(self) -> list[SlotRecord]:
        """Returns all reserved slots' records, in order."""
        memory = memoryview(self.memory.memory)
        return [decode_slot_record(memory, self.header.slot_record_offset(slot)) for slot in range(self.reserved_slots)]

    def consumer_record(self, consumer: int) -> ConsumerRecord:
        return decode_consumer_record(memoryview(self.memory.memory), self.header.consumer_record_offset(consumer))

    def has_living_consumer(self, consumer: int) -> bool:
        """Returns True while the process that writes this consumer's record lives."""
        return is_locked(self._fd, CONSUMER_LOCK_OFFSET + consumer)

    def has_former_writers(self) -> bool:
        """Returns True while a worker of a dead daemon may still write to the ring."""
        return is_locked(self.writers_fd, WRITERS_LOCK_OFFSET)

    def grow(self, slots: int) -> None:
        """Lets reserve_step() go up to `slots` from now on."""
        self._want(max(self.wanted_slots, min(slots, self.header.slots)))

    def shrink(self, slots: int, *, keeps_memory: bool = False) -> None:
        """Counts the slots from `slots` on, which nobody uses, as not reserved. Their memory goes, unless it
        `keeps_memory` as for a process that has had it pinned. They may be reserved again."""
        self._want(slots)
        # First: a record that outlived what is behind its slot would tell the next daemon of a batch of zeros, once
        # the slot is reserved again.
        for slot in range(slots, self.reserved_slots):
            offset = self.header.slot_record_offset(slot)
            self.memory.memory[offset : offset + 4] = b"\0\0\0\0"
        RESERVED_SLOTS.pack_into(self.memory.memory, RESERVED_SLOTS_OFFSET, slots)
        self._reserved_bytes = self.header.slot_payload_offset(slots)
        self._prefaulted_bytes = min(self._prefaulted_bytes, self._reserved_bytes)
        self._used_slots = min(self._used_slots, slots)
        kill_point("daemon.ring.shrunk")
        if not keeps_memory:
            self._free_unreserved()

    def _free_unreserved(self) -> None:
        """Takes the memory behind slots that are not reserved."""
        page_bytes = os.fstatvfs(self._fd).f_bsize
        begin = -(-self._reserved_bytes // page_bytes) * page_bytes
        if begin < len(self.memory.memory):
            # A store that cannot keeps it until the ring is gone.
            with contextlib.suppress(OSError):
                self.memory.memory.madvise(mmap.MADV_REMOVE, begin)

    def _want(self, slots: int) -> None:
        self.wanted_slots = slots
        RESERVED_SLOTS.pack_into(self.memory.memory, WANTED_SLOTS_OFFSET, slots)

    @property
    def next_step_bytes(self) -> int:
        """The bytes that the next reserve_step() takes."""
        return max(0, min(RESERVE_STEP_BYTES, self._wanted_end - self._reserved_bytes))

    def reserve_step(self) -> int:
        """Puts memory behind some more slots. Returns the number of slots that have it. Raises NoSpaceError."""
        end = self._reserved_bytes + self.next_step_bytes
        # Their tables first: whoever sees that a slot is reserved may read its record.
        if end > self._reserved_bytes:
            self._reserve_tables((end - self.header.payload_offset) // self.header.slot_bytes)
            self._reserve(self._reserved_bytes, end)
            self._reserved_bytes = end
        slots = self.reserved_slots
        kill_point("daemon.ring.uncounted")
        RESERVED_SLOTS.pack_into(self.memory.memory, RESERVED_SLOTS_OFFSET, slots)
        return slots

    def _reserve_tables(self, slots: int) -> None:
        """Puts memory behind the table entries of slots up to `slots`. Raises NoSpaceError."""
        for begin, end in self.header.tables_of(self.reserved_slots, slots):
            self._reserve(begin, end)

    def _reserve(self, begin: int, end: int) -> None:
        had_bytes = self.header.bytes_with(self.reserved_slots)
        _reserve(self._fd, begin, end, self.directory, had_bytes, self.wanted_bytes)

    @property
    def is_named(self) -> bool:
        """False when somebody has removed its name: whoever has it mapped keeps it, and nobody else finds it."""
        return is_named(self.name, self._fd, self.directory)

    def stay(self) -> None:
        """Gives up all growth: reserve_step() has nothing more to do."""
        self._want(self.reserved_slots)

    @property
    def wanted_bytes(self) -> int:
        """The bytes that the segment takes of memory once all wanted slots are reserved."""
        return self.header.bytes_with(self.wanted_slots)

    @property
    def _wanted_end(self) -> int:
        return self.header.slot_payload_offset(self.wanted_slots)

    @property
    def is_reserved(self) -> bool:
        return self._reserved_bytes >= self._wanted_end

    @property
    def is_prefault_due(self) -> bool:
        """Whether prefault_step() has something to do: not before all wanted slots are reserved."""
        return self.is_reserved and self._prefaulted_bytes < self._prefault_end

    @property
    def _prefault_end(self) -> int:
        # A little beyond what was ever in use, and no further. A ring whose trainer waits never has many slots in use,
        # and to clear the rest would take the CPUs from the batch that is waited for.
        used_end = self.header.slot_payload_offset(self._used_slots)
        ahead_bytes = max(PREFAULT_AHEAD_BYTES, PREFAULT_AHEAD_SLOTS * self.header.slot_bytes)
        return min(used_end + ahead_bytes, self._reserved_bytes)

    def prefault_step(self) -> bool:
        """Makes a few more MiB of the reserved memory resident, first slots first, and not far beyond those that were
        ever in use. Returns True when it is no longer due. Contents stay as they are."""
        end = min(self._prefaulted_bytes + PREFAULT_STEP_BYTES, self._prefault_end)
        length = end - self._prefaulted_bytes
        if length > 0:
            try:
                self.memory.memory.madvise(_MADV_POPULATE_WRITE, self._prefaulted_bytes, length)
            except OSError:
                # Linux before 5.14: a read makes the page of a shared file resident too.
                for at in range(self._prefaulted_bytes, end, mmap.PAGESIZE):
                    self.memory.memory[at]
            self._prefaulted_bytes = end
        return not self.is_prefault_due

    def write_slot(self, slot: int, record: SlotRecord) -> None:
        """Writes one slot's record, state first and state last (see segment_layout). A slot that is not READY is
        offered to nobody."""
        if record.state != SLOT_READY:
            self.offers.claimed(slot)
        self._used_slots = max(self._used_slots, slot + 1)
        offset = self.header.slot_record_offset(slot)
        data = encode_slot_record(record)
        memory = self.memory.memory
        memory[offset : offset + 4] = b"\0\0\0\0"
        memory[offset + 4 : offset + len(data)] = data[4:]
        kill_point("daemon.record.stateless")
        memory[offset : offset + 4] = data[:4]

    def marks(self, consumer: int) -> tuple[int, ...]:
        """Returns a generation for each reserved slot: that of the batch which the consumer was handed without a
        copy."""
        begin = self.header.mark_offset(consumer, 0)
        end = begin + self.reserved_slots * MARK.size
        return tuple(memoryview(self.memory.memory)[begin:end].cast("Q"))

    def close(self, *, unlink_name: bool = True) -> None:
        """Gives the segment up. Whoever has it mapped keeps it; nobody finds it any more. Idempotent."""
        if self._fd < 0:
            return
        if unlink_name:
            unlink(self.name, self.directory)
        self._words.release()
        self.memory.close()
        os.close(self.shared_fd)
        os.close(self.writers_fd)
        os.close(self._fd)
        self._fd = -1


def _make(name: str, directory: str) -> int:
    """Makes a new, empty file and returns its descriptor. Raises FileExistsError, and NoSpaceError when there can be
    none."""
    try:
        fd = os.open(directory + name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise FileExistsError(name) from None
    except OSError as error:
        is_full = error.errno in (errno.EMFILE, errno.ENFILE)
        hint = "" if is_full else ": is the RAM disk mounted?"
        raise NoSpaceError(f"no ring can be made in {directory} ({why(error)}){hint}") from None
    # Whatever the umask.
    os.fchmod(fd, 0o600)
    return fd


def _reserve(fd: int, begin: int, end: int, directory: str, had_bytes: int, wanted_bytes: int) -> None:
    """Puts memory behind the bytes from `begin` to `end`. Raises NoSpaceError, which says that `had_bytes` of
    `wanted_bytes` are there."""
    if end <= begin:
        return
    try:
        os.posix_fallocate(fd, begin, end - begin)
    except OSError as error:
        what = "shared memory" if directory == SHARED_MEMORY else directory
        where = "/dev/shm (docker: --shm-size)" if directory == SHARED_MEMORY else "it"
        raise NoSpaceError(
            f"{what} is full: {format_bytes(had_bytes)} of {format_bytes(wanted_bytes)} could be reserved "
            f"({error.strerror}). Lower buffer=, or enlarge {where}",
            end - begin,
        ) from None


def new_header(
    slots: int,
    slot_bytes: int,
    fingerprint: str,
    daemon_generation: int,
    spec: bytes,
    row_layout: bytes,
    program_name: str,
) -> SegmentHeader:
    """Describes a ring that is about to be made: returns its header."""
    return SegmentHeader(
        slots=slots,
        slot_bytes=slot_bytes,
        created_ns=time.time_ns(),
        daemon_generation=daemon_generation,
        fingerprint=fingerprint,
        row_layout_bytes=len(row_layout),
        spec_bytes=len(spec),
        program_name=program_name,
    )


def is_named(name: str, fd: int, directory: str = SHARED_MEMORY) -> bool:
    """Returns True while the shared memory behind `fd` is found under `name`: not if the directory cannot be
    asked."""
    try:
        named, mine = os.stat(directory + name), os.fstat(fd)
    except OSError:
        return False
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def unlink(name: str, directory: str = SHARED_MEMORY) -> None:
    """Removes the name of a segment; no matter if it, or the RAM disk with it, is gone."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(directory + name)
