"""ready_batches finds what lies ready in the rings of a daemon that has just died, read from the segments as any
adopter could."""

from __future__ import annotations

import dataclasses
import os

from benchmarks.chaos.work import WORKS
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.file_locks import is_locked
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, RuntimePaths
from prefetchd.wire.segment_layout import (
    CONSUMER_LOCK_OFFSET,
    CONSUMERS,
    HEADER_BYTES,
    MARK,
    OFFER,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    SLOT_CONTINUED,
    SLOT_READY,
    SPEC_OFFSET,
    SegmentHeader,
    SlotRecord,
    decode_consumer_record,
    decode_header,
    decode_slot_record,
)
from prefetchd.wire.stream_spec import decode_spec

SHARED_MEMORY = "/dev/shm"


@dataclasses.dataclass(frozen=True)
class ReadyBatch:
    """Names a batch that no adopter needs to make again."""

    seed: int
    epoch: int
    step: int


def ready_batches(paths: RuntimePaths) -> set[ReadyBatch]:
    """Returns all batches whose records say READY, whose slots all still belong to them, that were handed to nobody
    without a copy (and none of several living consumers was offered so: they are its own until it comes back), and that
    a living consumer comes to before its share of the ring is used up (what lies further ahead may have to give way to
    another's). For when the daemon is dead and no other has begun."""
    found: set[ReadyBatch] = set()
    prefix = f"{SEGMENT_PREFIX}{paths.instance}-ring-"
    for name in os.listdir(SHARED_MEMORY):
        if name.startswith(prefix):
            found |= _ready(f"{SHARED_MEMORY}/{name}")
    return found


def _ready(path: str) -> set[ReadyBatch]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return set()
    try:
        size = os.fstat(fd).st_size
        header = decode_header(os.pread(fd, HEADER_BYTES, 0), size)
        living = {each for each in range(header.consumers) if is_locked(fd, CONSUMER_LOCK_OFFSET + each)}
        return ready_of(os.pread(fd, header.payload_offset, 0), header, living)
    except PrefetchdError:
        return set()  # no whole ring: it was just being made
    finally:
        os.close(fd)


def ready_of(data: bytes, header: SegmentHeader, living: set[int]) -> set[ReadyBatch]:
    """Returns the ready batches of the ring that begins with `data`, whose consumers of these records live."""
    (reserved,) = RESERVED_SLOTS.unpack_from(data, RESERVED_SLOTS_OFFSET)
    spec = decode_spec(data[SPEC_OFFSET : SPEC_OFFSET + header.spec_bytes])
    steps = -(-spec.length // spec.batch_size)
    records = [decode_slot_record(data, header.slot_record_offset(slot)) for slot in range(reserved)]
    consumers = [decode_consumer_record(data, header.consumer_record_offset(number)) for number in living]
    stands = [each.epoch * steps + each.step for each in consumers if each.yielded]
    # Whatever is to come may be as long as the longest.
    slots = reserved // max((each.span for each in records if each.state == SLOT_READY), default=1)
    # A trainer that has not looked at the ring yet shares it, too.
    sharing = max(1, len(living), sum(work.seed == spec.seed for work in WORKS))
    share = (slots - min(spec.lookback, slots // 2)) // sharing
    return {
        ReadyBatch(spec.seed, record.epoch, record.step)
        for slot, record in enumerate(records)
        if record.state == SLOT_READY
        and any(0 <= record.epoch * steps + record.step - at < share for at in stands)
        and _is_whole(records, record)
        and not _was_handed_out(data, header, slot, record.generation)
        and not (len(living) > 1 and _is_somebodys(data, header, slot))
    }


def _is_whole(records: list[SlotRecord], first: SlotRecord) -> bool:
    length, following = 1, first.next_slot
    while following >= 0 and length <= first.span:
        if following >= len(records):
            return False
        record = records[following]
        if record.state != SLOT_CONTINUED or record.generation != first.generation:
            return False
        length, following = length + 1, record.next_slot
    return length == first.span


def _is_somebodys(data: bytes, header: SegmentHeader, slot: int) -> bool:
    (offer,) = OFFER.unpack_from(data, header.offers_offset + slot * OFFER.size)
    return bool(offer >> CONSUMERS)


def _was_handed_out(data: bytes, header: SegmentHeader, slot: int, generation: int) -> bool:
    marks = (MARK.unpack_from(data, header.mark_offset(each, slot))[0] for each in range(header.consumers))
    return generation in marks
