"""Does a worker's work without its process: tasks in, answers out. Who carries them is the backend's affair."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes import damage_found
from prefetchd.wire.batch_file import STREAM_FILE, temporary_name
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.messages import (
    BEGIN,
    CHECK_FILES,
    COMPARE,
    DIGEST,
    FILL_ROWS,
    HELP,
    MEASURE,
    BadSamples,
    Compared,
    Digested,
    FilesChecked,
    Filled,
    FillFailed,
    Helped,
    Measured,
    Message,
    SamplesWrote,
    ShardBegun,
    ShardCame,
    ShardEnded,
    Spent,
    StoreFailed,
    Unfit,
)
from prefetchd.wire.remote_exception import encode_exception
from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import decode_slot_record, payload_digest
from prefetchd.wire.shard_states import MOST_BYTES
from prefetchd.wire.slot_layout import RowLayout
from prefetchd.wire.stream_spec import Position
from prefetchd.wire.worker_status import DIGESTING, IDLE
from prefetchd.workers.file_codec import FilePlace, StoreError
from prefetchd.workers.fill import Filler
from prefetchd.workers.opened_files import OpenedFiles, changed_file
from prefetchd.workers.program import ProgramSpentError
from prefetchd.workers.row_leaves import Deviation
from prefetchd.workers.samples import NOT_DEADLY, Deadly
from prefetchd.workers.shards import NoSuchBatch
from prefetchd.workers.shared_samples import SharedSamples
from prefetchd.workers.user_code import UserCodeError, remote_exception

# So that a message of the longest texts fits into a packet.
BAD_SAMPLES_A_MESSAGE = 32
STORE_AGAIN_S = 0.25
TELL_SHARD_EVERY_S = 0.5


class TaskRunner:
    """Does fill tasks of one stream, in the ring that it was lent."""

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._opened = OpenedFiles()
        self._ring: RingMemory | None = None
        self._of_owner: SharedSamples | None = None
        # By shard: in which epoch, and when.
        self._told_shard: dict[int, tuple[int, float]] = {}

    def watch_files(self) -> None:
        """Remember from now on which files are opened for each task."""
        self._opened.watch()

    def use_ring(self, fd: int, layout: bytes) -> None:
        """Maps the ring behind `fd`, which it takes over; `layout` is the stream's row layout or empty."""
        self.release_ring()
        self._ring = RingMemory(fd)
        if layout:
            self._filler.use_layout(layout)

    def use_samples(self, fd: int) -> None:
        """Takes over `fd`, the status of the worker that is to be helped next."""
        if self._of_owner is not None:
            self._of_owner.close()
        self._of_owner = SharedSamples(fd)
        os.close(fd)

    def release_ring(self) -> None:
        """Lets the ring go. Idempotent."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def run(self, task: FillTask, keys: bytes = b"") -> Message:
        """Does the task and returns the answer: Filled when it is done. `keys` as Fill has them."""
        begin_us = _now_us()
        note = self._filler.note
        note.begin(task.number)
        if task.kind == CHECK_FILES:
            note.phase(DIGESTING)
            path = changed_file(keys)
            note.phase(IDLE)
            return FilesChecked(task.number, path is None, path or "", _now_us() - begin_us)
        if keys:
            self._filler.use_keys(task.position, keys)
        answer = self._do(task)
        # Not when it raises: what ends this process is to be seen in the note.
        note.phase(IDLE)
        if damage_found.found:
            note.damage_found()
        if isinstance(answer, int):
            samples = self._filler.samples_in(task.rows)
            opened = self._opened.take(self._filler.work_of(task.position))
            return Filled(
                ((task.number, answer, _now_us() - begin_us, samples),),
                self._filler.times.take(),
                (opened,) if opened else (),
            )
        if isinstance(answer, (Measured, ShardBegun, Unfit)):
            # Files that were read for this task are not read again by the task that fills the batch.
            self._opened.set_aside(self._filler.work_of(task.position))
        return answer

    def asides(self, task: int) -> list[Message]:
        """Returns what is to be said before the answer: of samples that were left out or replaced in `task`, and now
        and then where its shard's iterator stands."""
        wrote = self._filler.later_write()
        return [*self._bad_samples(task), *self._shard_came(), *([SamplesWrote(wrote)] if wrote else [])]

    def _shard_came(self) -> list[Message]:
        found = self._filler.shard_state()
        if found is None or len(found[3]) > MOST_BYTES:
            return []
        epoch, shard, number, state = found
        now_s = time.monotonic()
        told_epoch, told_s = self._told_shard.get(shard, (-1, 0.0))
        if told_epoch == epoch and now_s - told_s < TELL_SHARD_EVERY_S:
            return []
        self._told_shard[shard] = epoch, now_s
        return [ShardCame(epoch, shard, number, state)]

    def _bad_samples(self, task: int) -> list[BadSamples]:
        found = self._filler.take_bad()
        told = []
        for at in range(0, len(found), BAD_SAMPLES_A_MESSAGE):
            part = found[at : at + BAD_SAMPLES_A_MESSAGE]
            rows = tuple((each.row, each.attempt, each.index) for each in part)
            told.append(BadSamples(task, rows, tuple(each.text.encode("utf-8", "replace") for each in part)))
        return told

    def _do(self, task: FillTask) -> int | Message:
        """Does the task. Returns the answer, or the payload bytes of what was filled."""
        number, position, slot = task.number, task.position, task.slot
        deadly = frozenset(task.deadly) if task.deadly else NOT_DEADLY
        try:
            if task.kind == MEASURE:
                measure = self._filler.measure(position, task.end, deadly)
                kill_point("worker.measured")
                return Measured(
                    number,
                    measure.payload_bytes,
                    measure.layout,
                    self._filler.one_by_one,
                    measure.wrote,
                    measure.varies,
                )
            if task.kind == HELP:
                return self._help(task)
            if task.kind == BEGIN:
                self._filler.begin_shard(position, anew=task.begins_anew)
                return ShardBegun(number)
            ring = self._ring
            assert ring is not None
            if task.kind == FILL_ROWS:
                return self._filler.fill_rows(position, task.first, task.end, ring.batch(slot), deadly)
            if task.kind == DIGEST:
                return self._digest(number, slot, task.payload_bytes)
            if task.kind == COMPARE:
                return self._compare(task, deadly)
            span = self._span(slot)
            room = span * ring.header.slot_bytes
            payload_bytes = self._filler.fill_whole(
                position, task.end, room, lambda: self._target(ring, slot, span, position), deadly
            )
            return payload_bytes if payload_bytes <= room else Unfit.needing(number, payload_bytes)
        except Deviation as deviation:
            # The batch is made whole: then they are told.
            self._filler.take_bad()
            return Unfit.deviating(number, str(deviation)[:500])
        except StoreError as error:
            # Or the same task would go to and fro as fast as it can.
            time.sleep(STORE_AGAIN_S)
            return StoreFailed(number, str(error)[:500], error.is_full)
        except ProgramSpentError:
            return Spent(number)
        except NoSuchBatch as none:
            return ShardEnded(number, none.batches)
        except UserCodeError as error:
            return FillFailed(number, encode_exception(remote_exception(error)))

    def _target(self, ring: RingMemory, slot: int, span: int, position: Position) -> Any:
        """Returns where the whole batch goes: a file, or its slots."""
        directory = self._filler.directory
        if directory:
            return FilePlace(
                os.path.join(directory, temporary_name(position, ring.header.created_ns)),
                os.path.join(directory, STREAM_FILE),
            )
        return ring.batch(slot, span)

    def _digest(self, task: int, slot: int, payload_bytes: int) -> Digested:
        begin_us = _now_us()
        self._filler.note.phase(DIGESTING)
        assert self._ring is not None
        payload = memoryview(self._ring.batch(slot, self._span(slot))).cast("B")[:payload_bytes]
        return Digested(task, payload_digest(payload), _now_us() - begin_us)

    def _compare(self, task: FillTask, deadly: Deadly) -> Message:
        """Makes the batch beside the one in its slots, or a few of its rows, in memory of this process's own, and
        compares the two."""
        begin_us = _now_us()
        ring = self._ring
        assert ring is not None
        span = self._span(task.slot)
        theirs = memoryview(ring.batch(task.slot, span)).cast("B")
        room = span * ring.header.slot_bytes
        layout = self._filler.layout
        if layout is not None and task.rows < self._filler.plan.row_count(*task.position):
            # Pages of it that nothing is written to take no memory.
            ours = ring.array_type(room).from_buffer(mmap.mmap(-1, room))
            self._filler.fill_rows(task.position, task.first, task.end, ours, deadly)
            self._filler.note.phase(DIGESTING)
            row = _row_that_differs(layout, task.first, task.end, memoryview(ours).cast("B"), theirs)
            return Compared(task.number, row < 0, _now_us() - begin_us, row)
        # What nobody writes between two leaves is the same in both then.
        ours = ring.array_type(room).from_buffer(bytearray(theirs))
        if layout is not None:
            payload_bytes = self._filler.fill_rows(task.position, 0, task.end, ours, deadly)
        else:
            payload_bytes = self._filler.fill_whole(task.position, task.end, room, lambda: ours, deadly)
        if payload_bytes > room:
            return Unfit.needing(task.number, payload_bytes)
        self._filler.note.phase(DIGESTING)
        our_bytes = memoryview(ours).cast("B")[:payload_bytes]
        is_equal = payload_digest(our_bytes) == payload_digest(theirs[:payload_bytes])
        row = -1 if is_equal or layout is None else _row_that_differs(layout, 0, task.end, our_bytes, theirs)
        return Compared(task.number, is_equal, _now_us() - begin_us, row)

    def _help(self, task: FillTask) -> Helped:
        begin_us = _now_us()
        shared, self._of_owner = self._of_owner, None
        if shared is None:
            # The owner was gone before its status could be lent.
            return Helped(task.number)
        try:
            made, is_of_use = self._filler.help(task.position, task.end, shared, task.slot)
        finally:
            shared.close()
        return Helped(task.number, made, is_of_use, _now_us() - begin_us, self._opened.take())

    def _span(self, slot: int) -> int:
        ring = self._ring
        assert ring is not None
        return decode_slot_record(ring.memory, ring.header.slot_record_offset(slot)).span  # type: ignore[arg-type]


def _row_that_differs(layout: RowLayout, first: int, end: int, ours: memoryview, theirs: memoryview) -> int:
    """Return the first of the rows [first, end) that is not the same in two batches; -1 when all are."""
    for row in range(first, end):
        for storage in layout.meta.storages:
            row_bytes = storage.storage_bytes // layout.rows
            at = storage.offset + row * row_bytes
            if payload_digest(ours[at : at + row_bytes]) != payload_digest(theirs[at : at + row_bytes]):
                return row
    return -1


def _now_us() -> int:
    return time.monotonic_ns() // 1000
