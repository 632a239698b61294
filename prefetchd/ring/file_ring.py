"""Keeps a ring whose batches are files in a directory: the segment has the records, and nothing behind its slots.

A slot is a right to bytes: a batch's file is no larger than the slots that were claimed for it, so that all files
together never pass what the ring may have. The directory changes only here: a file appears when its record becomes
READY and goes when its slot is free, before anybody can claim that.
Decision 0042 has the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.ring.batch_files import BatchFiles
from prefetchd.ring.segment import RingSegment
from prefetchd.wire.segment_layout import (
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    SLOT_EMPTY,
    SLOT_READY,
    SegmentHeader,
    SlotRecord,
    decode_slot_record,
)
from prefetchd.wire.stream_spec import Position


class FileRing(RingSegment):
    """A ring of files, made by create(); whoever owns the directory then sets `files`."""

    files: BatchFiles

    def __init__(self, name: str, fd: int, header: SegmentHeader, wanted_slots: int, directory: str) -> None:
        super().__init__(name, fd, header, wanted_slots, directory)
        # A position may be made again in another slot while a trainer has its former use.
        self._slot_of: dict[Position, int] = {}
        self._unshown: set[Position] = set()
        """Positions whose record is READY and whose file could not be made to appear."""

    @property
    def next_step_bytes(self) -> int:
        # Workers take the memory, file by file.
        return 0

    def reserve_step(self) -> int:
        """Makes all slots usable at once: no memory is kept for them. Returns the number of slots. Raises
        NoSpaceError."""
        self._reserve_tables(self.wanted_slots)
        self._reserved_bytes = self._wanted_end
        RESERVED_SLOTS.pack_into(self.memory.memory, RESERVED_SLOTS_OFFSET, self.reserved_slots)
        return self.reserved_slots

    @property
    def is_prefault_due(self) -> bool:
        return False

    def write_slot(self, slot: int, record: SlotRecord) -> None:
        """Writes one slot's record. A batch that becomes READY appears in the directory first. If it cannot, missing()
        names it later."""
        if record.state == SLOT_READY:
            kill_point("daemon.file.hidden")
            try:
                self.files.appear(_position(record))
                self._unshown.discard(_position(record))
            except OSError:
                # What is there under its name, if anything, is not what was written.
                self._unshown.add(_position(record))
            self._slot_of[record.epoch, record.step] = slot
            kill_point("daemon.file.shown")
        super().write_slot(slot, record)

    def take_over(self, slot: int, record: SlotRecord) -> None:
        """Writes the record of a batch that a former daemon has left."""
        if record.state == SLOT_READY:
            self._slot_of[_position(record)] = slot
        super().write_slot(slot, record)

    def free_slot(self, slot: int, generation: int) -> None:
        """Ends the use of `slot` with `generation`: its batch is done with, and its file goes."""
        record = self._record(slot)
        if record.generation == generation and record.state != SLOT_EMPTY:
            position = _position(record)
            if self._slot_of.get(position, slot) == slot:
                self._slot_of.pop(position, None)
                self._unshown.discard(position)
                self.files.vanish(position)
            super().write_slot(slot, SlotRecord(SLOT_EMPTY, generation=generation))
            kill_point("daemon.file.gone")

    def missing(self) -> list[tuple[int, int]]:
        """Lists (slot, generation) of batches whose files somebody else has removed or replaced, or that did not
        appear."""
        there = self.files.sizes().keys() - self._unshown
        return [(slot, record.generation) for slot, record in self._ready() if _position(record) not in there]

    def leftover(self) -> list[Position]:
        """Lists batches that are there and should not be: they could not be removed when they were done with."""
        kept = self.kept()
        return [position for position in self.files.positions() if position not in kept]

    def kept(self) -> set[Position]:
        """Returns the positions of all batches that are READY."""
        return {_position(record) for _, record in self._ready()}

    def _ready(self) -> Iterator[tuple[int, SlotRecord]]:
        for slot in range(self.reserved_slots):
            record = self._record(slot)
            if record.state == SLOT_READY:
                yield slot, record

    def _record(self, slot: int) -> SlotRecord:
        return decode_slot_record(memoryview(self.memory.memory), self.header.slot_record_offset(slot))


def _position(record: SlotRecord) -> Position:
    return record.epoch, record.step


def file_bytes(directory: str) -> int:
    """Returns the bytes that all files of `directory` take together."""
    with os.scandir(directory) as entries:
        return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries if entry.is_file())
