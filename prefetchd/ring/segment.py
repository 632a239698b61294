"""The memory behind a ring: made, locked, reserved, prefaulted and unlinked by the daemon that owns it.

Owned means: the daemon holds the lock on DAEMON_LOCK_OFFSET through a description that it never passes on. What it
passes to workers and clients is another description of the same file, so that the lock ends with the daemon and with
nobody else.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time

import posix_ipc

from prefetchd.wire.errors import InvariantError, NoSpaceError
from prefetchd.wire.file_locks import reopen, try_lock
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import (
    DAEMON_LOCK_OFFSET,
    MARK,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    ROW_LAYOUT_OFFSET,
    SPEC_OFFSET,
    SegmentHeader,
    SlotRecord,
    encode_header,
    encode_slot_record,
)

RESERVE_STEP_BYTES = 8 << 20
PREFAULT_STEP_BYTES = 4 << 20
_MADV_POPULATE_WRITE = 23


class RingSegment:
    """One stream's ring in POSIX shared memory.

    After creation, call reserve_step() until it is done: each makes more slots usable. Then prefault_step() until it
    is done; it is only for speed. Both take a few milliseconds a call.
    """

    def __init__(self, name: str, header: SegmentHeader, spec: bytes, row_layout: bytes, wanted_slots: int) -> None:
        """Creates the segment, mode 0600, with header, spec and layout in it and no slot reserved. Of the header's
        slots, `wanted_slots` will be reserved at first. Raises NoSpaceError, and FileExistsError when the name is
        taken."""
        self.name = name
        self.wanted_slots = wanted_slots
        self.header = header
        try:
            shared = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=0)
        except posix_ipc.ExistentialError:
            raise FileExistsError(name) from None
        self._fd = shared.fd
        self._reserved_bytes = 0
        self._prefaulted_bytes = 0
        self.shared_fd = -1
        try:
            os.ftruncate(self._fd, header.segment_bytes)
            self._reserve_up_to(header.payload_offset)
            if not try_lock(self._fd, DAEMON_LOCK_OFFSET):
                raise InvariantError(f"the new segment {name} is locked by somebody")
            os.pwrite(self._fd, spec, SPEC_OFFSET)
            os.pwrite(self._fd, row_layout, ROW_LAYOUT_OFFSET)
            # The header last: without it nobody takes this for a ring.
            os.pwrite(self._fd, encode_header(header), 0)
            self.shared_fd = reopen(self._fd)
            self.memory = RingMemory(reopen(self._fd))
        except BaseException as error:
            if self.shared_fd >= 0:
                os.close(self.shared_fd)
            os.close(self._fd)
            unlink(name)
            if isinstance(error, OSError):
                raise NoSpaceError(
                    f"a ring of {header.segment_bytes >> 20} MiB cannot be made ({error.strerror}). Lower buffer=, or "
                    "raise the daemon's limits (ulimit -a)"
                ) from None
            raise

    def grow(self, slots: int) -> None:
        """From now on reserve_step() goes up to `slots`."""
        self.wanted_slots = max(self.wanted_slots, min(slots, self.header.slots))

    def reserve_step(self) -> int:
        """Puts memory behind some more slots; the number of slots that have it. Raises NoSpaceError."""
        self._reserve_up_to(min(self._reserved_bytes + RESERVE_STEP_BYTES, self.wanted_bytes))
        slots = (self._reserved_bytes - self.header.payload_offset) // self.header.slot_bytes
        RESERVED_SLOTS.pack_into(self.memory.memory, RESERVED_SLOTS_OFFSET, slots)
        return slots

    def stay(self) -> None:
        """reserve_step() has nothing more to do."""
        self.wanted_slots = (self._reserved_bytes - self.header.payload_offset) // self.header.slot_bytes

    @property
    def wanted_bytes(self) -> int:
        """The segment's bytes once all wanted slots are reserved."""
        return self.header.slot_payload_offset(self.wanted_slots)

    @property
    def is_reserved(self) -> bool:
        return self._reserved_bytes >= self.wanted_bytes

    def prefault_step(self) -> bool:
        """Makes a few more MiB of what is reserved resident, first slots first; True when all is. Contents stay as
        they are."""
        end = min(self._prefaulted_bytes + PREFAULT_STEP_BYTES, self._reserved_bytes)
        length = end - self._prefaulted_bytes
        if length > 0:
            try:
                self.memory.memory.madvise(_MADV_POPULATE_WRITE, self._prefaulted_bytes, length)
            except OSError:
                # Linux before 5.14: a read makes the page of a shared file resident too.
                for at in range(self._prefaulted_bytes, end, mmap.PAGESIZE):
                    self.memory.memory[at]
        self._prefaulted_bytes = end
        return end >= self._reserved_bytes

    def write_slot(self, slot: int, record: SlotRecord) -> None:
        """Writes one slot's record, state first and state last (see segment_layout)."""
        offset = self.header.slot_record_offset(slot)
        data = encode_slot_record(record)
        memory = self.memory.memory
        memory[offset : offset + 4] = b"\0\0\0\0"
        memory[offset + 4 : offset + len(data)] = data[4:]
        memory[offset : offset + 4] = data[:4]

    def marks(self, consumer: int) -> tuple[int, ...]:
        """What the consumer was handed without a copy: a generation a slot."""
        begin = self.header.mark_offset(consumer, 0)
        end = begin + self.header.slots * MARK.size
        return tuple(memoryview(self.memory.memory)[begin:end].cast("Q"))

    def close(self, *, unlink_name: bool = True) -> None:
        """Gives the segment up. Whoever has it mapped keeps it; nobody finds it any more. Idempotent."""
        if self._fd < 0:
            return
        if unlink_name:
            unlink(self.name)
        self.memory.close()
        os.close(self.shared_fd)
        os.close(self._fd)
        self._fd = -1

    def _reserve_up_to(self, end: int) -> None:
        if end <= self._reserved_bytes:
            return
        try:
            os.posix_fallocate(self._fd, self._reserved_bytes, end - self._reserved_bytes)
        except OSError as error:
            raise NoSpaceError(
                f"shared memory is full: {self._reserved_bytes >> 20} of {self.header.segment_bytes >> 20} MiB could "
                f"be reserved ({error.strerror}). Lower buffer=, or enlarge /dev/shm (docker: --shm-size)",
                end - self._reserved_bytes,
            ) from None
        self._reserved_bytes = end


def new_header(
    slots: int,
    slot_bytes: int,
    fingerprint: str,
    daemon_generation: int,
    spec: bytes,
    row_layout: bytes,
    program_name: str,
) -> SegmentHeader:
    """The header of a ring that is about to be made."""
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


def unlink(name: str) -> None:
    """Removes a shared memory name; no matter if it is gone."""
    with contextlib.suppress(posix_ipc.ExistentialError):
        posix_ipc.unlink_shared_memory(name)
