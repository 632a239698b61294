"""Adoption reads a dead daemon's ring, and decides what of it can be trusted. Pure.

A slot's record says READY from when all rows are in until the slot is claimed anew: whether the batch was evicted
meanwhile does not matter, its bytes are still there. It is not trusted when a consumer was handed it without a copy
(its mark equals the generation), for its holder may have written to it, until its digest is found unchanged. A record
that says FILLING may have writers that still live. What a living consumer was offered stays its own until it comes
back; what it was offered to copy others may copy, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.ring.capacity import Bounds
from prefetchd.ring.offers import takers
from prefetchd.ring.policy import Grant
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_FILLING, SLOT_READY, SlotRecord
from prefetchd.wire.stream_spec import Position


@dataclasses.dataclass(frozen=True)
class FoundConsumer:
    """One consumer of the ring: its record's number, whether its process lives, where it stands (None when it has
    yielded nothing), and its marks, a generation a slot. One that has `departed` has closed its loader: it will not
    come back, and has a right only to what it was handed without a copy."""

    record: int
    pid: int
    alive: bool
    position: Position | None
    marks: tuple[int, ...]
    departed: bool = False


@dataclasses.dataclass(frozen=True)
class FoundRing:
    """A ring without a daemon. `slots` is its full size; `records` and `offers` (ring.offers) are those of the
    reserved slots; `wanted_slots` are to be reserved in the end, and it may grow within `bounds`, or up to `slots`."""

    ring: int
    slots: int
    wanted_slots: int
    slot_bytes: int
    layout: bytes
    has_program: bool
    records: tuple[SlotRecord, ...]
    offers: tuple[int, ...]
    consumers: tuple[FoundConsumer, ...] = ()
    bounds: Bounds | None = None


@dataclasses.dataclass(frozen=True)
class FoundBatch:
    """A batch of the ring. `filling`: it never became ready. By their records, consumers that may `copy` it, that may
    `have` it as it is, and that were `handed` it so; `digest` is that of its payload before, or 0; `plan` that of its
    keys."""

    grant: Grant
    position: Position
    payload_bytes: int
    digest: int
    filling: bool
    copy: frozenset[int]
    have: frozenset[int]
    handed: frozenset[int]
    plan: int = 0

    def batch(self, rows: int, *, whole: bool, written: bool) -> Batch:
        """Returns the ready batch as the engine keeps it."""
        return Batch(
            self.position,
            rows,
            self.grant,
            whole,
            self.grant.span,
            filled=True,
            written=written,
            payload_bytes=self.payload_bytes,
            digest=self.digest,
            plan=self.plan,
            plan_verified=not self.plan,
        )


def found_batches(found: FoundRing) -> list[FoundBatch]:
    """Returns all whole batches of the ring, the latest first."""
    batches = []
    for slot, record in enumerate(found.records):
        if record.state not in (SLOT_FILLING, SLOT_READY):
            continue
        # A batch that was evicted leaves its records: those of which a slot was claimed anew are no whole batch.
        slots = _chain(found.records, slot)
        if slots is None:
            continue
        marked = (each.record for each in found.consumers if _is_marked(each.marks, slot, record.generation))
        copy, have = takers(found.offers[slot])
        batches.append(
            FoundBatch(
                Grant(slots, record.generation),
                (record.epoch, record.step),
                record.payload_bytes,
                record.digest,
                record.state == SLOT_FILLING,
                copy,
                have,
                frozenset(marked),
                record.plan,
            )
        )
    return sorted(batches, key=lambda batch: -batch.grant.generation)


def last_generation(found: FoundRing) -> int:
    """Returns the highest generation that may ever have been given out on the ring."""
    # A claim that was cut short has written some of its slots' generations, if not all.
    return max((record.generation for record in found.records), default=0) + 1


def _is_marked(marks: Sequence[int], slot: int, generation: int) -> bool:
    return slot < len(marks) and marks[slot] == generation


def _chain(records: Sequence[SlotRecord], slot: int) -> tuple[int, ...] | None:
    """Returns the slots of the batch that begins in `slot`, or None when some of them have been claimed anew since."""
    first = records[slot]
    slots = [slot]
    following = first.next_slot
    while following >= 0:
        if following >= len(records) or len(slots) >= first.span:
            return None
        record = records[following]
        if record.state != SLOT_CONTINUED or record.generation != first.generation:
            return None
        slots.append(following)
        following = record.next_slot
    return tuple(slots) if len(slots) == first.span else None
