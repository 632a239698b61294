"""An Attachment is this process's hold of a ring: the mapping, its consumer record, its marks, and the leases of its
batches."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import RemoteError, StreamFailedError
from prefetchd.wire.file_locks import is_locked, reopen, try_lock
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.runtime_paths import SHARED_MEMORY
from prefetchd.wire.segment_layout import (
    CONSUMER_CURSOR,
    CONSUMER_CURSOR_OFFSET,
    CONSUMER_LOCK_OFFSET,
    CONSUMER_RECORD,
    DAEMON_LOCK_OFFSET,
    DEPARTED,
    HEADER_BYTES,
    MARK,
    MEMORY_MODE,
    MEMORY_MODE_OFFSET,
    MEMORY_MODES,
    SLOT_SPAN,
    SLOT_SPAN_OFFSET,
    SPEC_OFFSET,
    WAIT_BOUNDS_US,
    WAIT_COUNTS,
    WAIT_COUNTS_OFFSET,
    decode_header,
    decode_slot_record,
)
from prefetchd.wire.stream_spec import decode_spec
from prefetchd_client.batches.batch_files import BatchFileReader
from prefetchd_client.batches.tensors import BatchReader, private_copy
from prefetchd_client.device.pins import RingPins

Release = tuple[int, int, int]
"""(cursor, slot, generation)."""


@dataclasses.dataclass(slots=True)
class _Counts:
    """Counts of one consumer since its loader was made; times are in microseconds."""

    yielded: int = 0
    waited_us: int = 0
    longest_us: int = 0
    copies: int = 0
    waits: list[int] = dataclasses.field(default_factory=lambda: [0] * len(WAIT_BOUNDS_US))


class NotOurs(Exception):  # noqa: N818 - no error
    """The ring cannot be attached to. Either another daemon goes on with it: what the one that has opened it offered
    may be something else now. Or another process has our record's lock: it would be taken to live when we do not, and
    we to be dead when it is."""


class Attachment:
    """Maps a ring, and keeps what this process holds of it.

    Finalizers of tensors may run in any thread and at any moment: they only append to a deque, which take_released()
    empties.
    """

    def __init__(
        self,
        fd: int,
        consumer: int,
        generation: int,
        former: Attachment | None = None,
        classes: Iterable[type] = (),
    ) -> None:
        """Attaches to the ring of `fd`, which came from the daemon of that `generation`. Takes over `fd`, and the
        counts of the `former` attachment. `classes` are those that batches in files may hold instances of. Raises
        ProtocolError when `fd` is no ring, and NotOurs."""
        # A description of our own, that nothing maps: the lock on our record must end with this process, and a mapping
        # keeps its description for as long as a fork of ours has tensors that look at it.
        self._lock_fd = reopen(fd)
        try:
            # First the lock, then the header: a daemon that adopts the ring writes its generation there before it looks
            # for the locks of those that it has to wait for. Either it sees ours, or we see that.
            locked = try_lock(self._lock_fd, CONSUMER_LOCK_OFFSET + consumer)
            self.ring = RingMemory(fd)
        except BaseException:
            os.close(self._lock_fd)
            raise
        if not locked or self.ring.header.daemon_generation != generation:
            self.ring.close()
            os.close(self._lock_fd)
            raise NotOurs
        self.consumer = consumer
        kill_point("client.ring.attached")
        self._reader = BatchReader()
        spec = decode_spec(self.ring.memory[SPEC_OFFSET : SPEC_OFFSET + self.ring.header.spec_bytes])
        self._files = BatchFileReader(spec.directory, classes) if spec.store == "files" else None
        self._record_offset = self.ring.header.consumer_record_offset(consumer)
        self._held: dict[tuple[int, int], tuple[weakref.ref[Any], int, int]] = {}
        self._dropped: deque[Release] = deque()
        self._when_all_are_dropped: Callable[[], None] | None = None
        self._held_slots = 0
        self.pins: RingPins | None = None
        """Once the ring's batches go to a device: what is pinned of it, and who still reads what was dropped."""
        self._counts: _Counts = former._counts if former is not None else _Counts()
        if former is None:
            # Whoever wrote this record before must not be taken for us.
            CONSUMER_RECORD.pack_into(self.ring.memory, self._record_offset, os.getpid(), -1, *[0] * 8)
            self.note_memory(MEMORY_MODES[0])
        self._write_waits()

    def is_to(self, fd: int, consumer: int) -> bool:
        """Returns True when this is the attachment that RingOpened with `fd` asks for."""
        mine, other = os.fstat(self.ring.fd), os.fstat(fd)
        return (mine.st_dev, mine.st_ino, self.consumer) == (other.st_dev, other.st_ino, consumer)

    def holds(self) -> tuple[Release, ...]:
        """Returns the batches whose tensors live."""
        return tuple((cursor, slot, generation) for (slot, generation), (_, _, cursor) in list(self._held.items()))

    @property
    def held(self) -> int:
        """The number of batches whose tensors live."""
        return len(self._held)

    def stats(self) -> dict[str, Any]:
        """Returns the counts since the loader was made; times are in seconds."""
        return {
            "yielded": self._counts.yielded,
            "waited_s": self._counts.waited_us / 1e6,
            "longest_wait_s": self._counts.longest_us / 1e6,
            "private_copies": self._counts.copies,
            "held": len(self._held) - len(self._dropped),
            "slots": self.slots,
        }

    def take(self, cursor: int, slot: int, generation: int, *, private: bool) -> tuple[Any, bool]:
        """Returns the batch in `slot`, and whether it holds a lease. It holds none when it must be private, or when it
        would leave fewer than half of the ring's slots unleased: then it is a copy, and the slot can be released at
        once."""
        ring = self.ring
        if self._files is not None:
            return self._take_file(self._files, slot), False
        if not ring.is_whole:
            raise StreamFailedError(
                f"somebody has made the ring shorter than its {ring.header.segment_bytes} bytes: its batches are gone"
            )
        (span,) = SLOT_SPAN.unpack_from(ring.memory, ring.header.slot_record_offset(slot) + SLOT_SPAN_OFFSET)
        payload = ring.batch(slot, span)
        offset = ring.header.slot_payload_offset(slot)
        if private or self._held_slots + span > self.slots // 2:
            self._counts.copies += 1
            return self._reader.read(private_copy(payload), ring.memory, offset), False
        kill_point("client.mark.unwritten")
        # Before the hand-out: from here on its holder may write to it.
        MARK.pack_into(ring.memory, ring.header.mark_offset(self.consumer, slot), generation)
        kill_point("client.mark.written")
        key = (cursor, slot, generation)
        self._held[slot, generation] = (weakref.ref(payload, lambda _: self._drop(key)), span, cursor)
        self._held_slots += span
        return self._reader.read(payload, ring.memory, offset), True

    def _take_file(self, files: BatchFileReader, slot: int) -> Any:
        """Returns the batch of `slot`, whose file is this process's own once it is mapped."""
        ring = self.ring
        record = decode_slot_record(memoryview(ring.memory), ring.header.slot_record_offset(slot))
        try:
            return files.batch((record.epoch, record.step))
        except OSError as error:
            raise RemoteError(
                f"{files.directory}: the batch at epoch {record.epoch}, step {record.step} was removed by somebody "
                f"else ({error.strerror})"
            ) from None

    def take_released(self) -> tuple[int, ...]:
        """Returns the batches that nobody holds any more, as flat (cursor, slot, generation) triples. Each is returned
        once."""
        if not self._dropped:
            return ()
        released: list[int] = []
        for _ in range(len(self._dropped) if self.pins is None else self.pins.unread(self._dropped)):
            key = self._dropped.popleft()
            _, span, _ = self._held.pop(key[1:])
            self._held_slots -= span
            released += key
        return tuple(released)

    @property
    def slots(self) -> int:
        """The number of the ring's slots that have memory by now."""
        return self.ring.reserved_slots

    def note_yield(self, cursor: int, epoch: int, step: int, waited_us: int) -> int:
        """Writes this consumer's record: the position that is about to be yielded, and how long it took. Returns the
        monotonic time, in ns."""
        now_ns = time.monotonic_ns()
        counts = self._counts
        if not self.ring.is_whole:
            # take() has said so, or is about to.
            return now_ns
        counts.yielded += 1
        counts.waited_us += waited_us
        counts.longest_us = max(counts.longest_us, waited_us)
        if waited_us > WAIT_BOUNDS_US[0]:
            counts.waits[bisect_left(WAIT_BOUNDS_US, waited_us) - 1] += 1
            self._write_waits()
        # Without a lock: next() must not wait for a reader of the record.
        CONSUMER_RECORD.pack_into(
            self.ring.memory,
            self._record_offset,
            os.getpid(),
            cursor,
            epoch,
            step,
            counts.yielded,
            counts.waited_us,
            counts.copies,
            counts.longest_us,
            now_ns,
            len(self._held),
        )
        return now_ns

    def _write_waits(self) -> None:
        WAIT_COUNTS.pack_into(self.ring.memory, self._record_offset + WAIT_COUNTS_OFFSET, *self._counts.waits)

    def note_memory(self, mode: str) -> None:
        """Records for status what this consumer's batches go to a device from: one of MEMORY_MODES."""
        if self.ring.is_whole:
            MEMORY_MODE.pack_into(self.ring.memory, self._record_offset + MEMORY_MODE_OFFSET, MEMORY_MODES.index(mode))

    def note_departure(self) -> None:
        """Marks this consumer as departed: a daemon that adopts the ring then knows that it will not come back and only
        holds batches."""
        if self.ring.is_whole:
            CONSUMER_CURSOR.pack_into(self.ring.memory, self._record_offset + CONSUMER_CURSOR_OFFSET, DEPARTED)

    def reclaim(self) -> None:
        """Unlinks ring and program if their daemon is dead and nobody else consumes the stream: the next daemon may be
        long in coming."""
        fd, header = self._lock_fd, self.ring.header
        if is_locked(fd, CONSUMER_LOCK_OFFSET, header.consumers) or not try_lock(fd, DAEMON_LOCK_OFFSET):
            return
        found = [os.readlink(f"/proc/self/fd/{fd}")]
        if self.ring.is_whole:
            # Its program may have been named since we mapped it.
            named = decode_header(self.ring.memory[:HEADER_BYTES], len(self.ring.memory)).program_name
            found.append(SHARED_MEMORY + named)
        for path in found:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def when_all_are_dropped(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once the last held batch is gone, from whatever thread that happens in. It must not
        block."""
        self._when_all_are_dropped = callback
        if len(self._dropped) == len(self._held):
            self._all_are_dropped()

    def _drop(self, key: Release) -> None:
        self._dropped.append(key)
        if self._when_all_are_dropped is not None and len(self._dropped) == len(self._held):
            self._all_are_dropped()

    def _all_are_dropped(self) -> None:
        callback = self._when_all_are_dropped
        assert callback is not None
        if self.pins is None:
            callback()
        else:
            self.pins.when_unread(callback)

    def close(self) -> None:
        """Detaches from the ring. Memory that tensors look at stays mapped until they are gone."""
        if self.pins is not None:
            self.pins.close()
            self.pins = None
        # What refers back to this object would keep the mapping until the garbage collector comes round.
        self._when_all_are_dropped = None
        self.take_released()
        self.ring.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
