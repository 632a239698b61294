"""Holds the ring that a node's workers write to: a few slots in memory of this process's own, which ends with it."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

from prefetchd.wire.ring_memory import RingMemory, map_shared
from prefetchd.wire.segment_layout import (
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    ROW_LAYOUT_OFFSET,
    SLOT_FILLING,
    SPEC_OFFSET,
    SegmentHeader,
    SlotRecord,
    encode_header,
    encode_slot_record,
)


class NodeRing:
    """A ring of `slots` slots, each a batch's place while it is made. Nobody has to find it: it has no name."""

    def __init__(self, slots: int, slot_bytes: int, fingerprint: str, spec: bytes, layout: bytes) -> None:
        """Raises OSError when there is no memory for it."""
        header = SegmentHeader(
            slots=slots,
            slot_bytes=slot_bytes,
            created_ns=time.time_ns(),
            daemon_generation=1,
            fingerprint=fingerprint,
            row_layout_bytes=len(layout),
            spec_bytes=len(spec),
            program_name="",
        )
        self.layout = layout
        size = -(-header.segment_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("prefetchd-node-ring", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            # So that a node without memory says so here, and no worker dies of SIGBUS.
            os.posix_fallocate(fd, 0, size)
            with map_shared(fd, size) as memory:
                memory[SPEC_OFFSET : SPEC_OFFSET + len(spec)] = spec
                memory[ROW_LAYOUT_OFFSET : ROW_LAYOUT_OFFSET + len(layout)] = layout
                RESERVED_SLOTS.pack_into(memory, RESERVED_SLOTS_OFFSET, slots)
                record = encode_slot_record(SlotRecord(SLOT_FILLING))
                for slot in range(slots):
                    at = header.slot_record_offset(slot)
                    memory[at : at + len(record)] = record
                encoded = encode_header(header)
                memory[: len(encoded)] = encoded
        except BaseException:
            os.close(fd)
            raise
        self._memory = RingMemory(fd)

    @property
    def fd(self) -> int:
        return self._memory.fd

    def payload(self, slot: int) -> Any:
        """Returns the memory of the batch in the slot, as a ctypes array."""
        return self._memory.batch(slot)

    def close(self) -> None:
        """Lets the memory go. Idempotent."""
        self._memory.close()
