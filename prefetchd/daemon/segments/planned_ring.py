"""Computes what ring a stream gets, once its first batch is measured: the daemon makes it, and `prefetchd config check`
tells of it before."""

from __future__ import annotations

import contextlib
import dataclasses
import os

from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.plan.schedule import schedule_of
from prefetchd.ring.batch_files import RESERVE_BYTES
from prefetchd.ring.capacity import Room, aligned_slot_bytes, ring_bytes, roomy_slot_bytes, slots_for
from prefetchd.wire.stream_spec import StreamSpec


def planned_ring(spec: StreamSpec, batch_bytes: int, slot_bytes: int, room: Room) -> tuple[StreamSpec, int, int]:
    """Computes the ring of a stream whose first batch takes `batch_bytes`: its slots and their bytes, at least
    `slot_bytes`. Returns the spec with it whose buffer they are. Raises BufferTooSmallError or NoSpaceError."""
    slot_bytes = _aligned(spec, slot_bytes)
    if spec.store == FILES:
        spec = _with_files(spec, slot_bytes)
    steps = epoch_steps(spec)
    slots = slots_for(spec, batch_bytes, slot_bytes, room, steps)
    if not spec.buffer_bytes and spec.store != FILES:
        slot_bytes = _aligned(spec, roomy_slot_bytes(slot_bytes, slots))
        slots = slots_for(spec, batch_bytes, slot_bytes, room, steps)
    return spec, slots, slot_bytes


def epoch_steps(spec: StreamSpec) -> int | None:
    """Returns the batches of an epoch, or None when nobody knows yet."""
    if spec.is_arithmetic:
        return schedule_of(spec).steps
    return spec.epoch_steps or None


def _aligned(spec: StreamSpec, slot_bytes: int) -> int:
    """Returns the size rounded up to whole pages, also where these are large."""
    slot_bytes = aligned_slot_bytes(slot_bytes)
    if spec.store == "ram_disk":
        with contextlib.suppress(OSError):
            page_bytes = os.statvfs(spec.directory).f_bsize
            slot_bytes = -(-slot_bytes // page_bytes) * page_bytes
    return slot_bytes


def _with_files(spec: StreamSpec, slot_bytes: int) -> StreamSpec:
    """Returns the spec whose buffer is a ring of as many slots as there may be files: the ring itself takes nothing of
    what files may have."""
    if not spec.buffer_bytes:
        return spec
    slots = max(0, spec.buffer_bytes - RESERVE_BYTES) // slot_bytes
    return dataclasses.replace(spec, buffer_bytes=ring_bytes(slots, slot_bytes))
