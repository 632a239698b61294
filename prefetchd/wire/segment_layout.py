"""Defines the ring's segment: one shared mapping, little-endian, version 4.

    offset 0        +--------------------------------------------------------------+
                    | header, reserved slots                           4096 bytes  |  daemon writes
    SPEC            +--------------------------------------------------------------+
                    | stream spec, msgpack (stream_spec)               4096 bytes  |  daemon writes, once
                    | row layout, msgpack (slot_layout)               12288 bytes  |  daemon writes, once
    slot_records    +--------------------------------------------------------------+
                    | record of slot 0 | slot 1 | ...               64 bytes each  |  daemon writes
    offers          +--------------------------------------------------------------+
                    | one u32 a slot                                               |  daemon writes
    consumer_records+--------------------------------------------------------------+
                    | record of consumer 0 | 1 | ...               128 bytes each  |  that consumer writes
    marks           +--------------------------------------------------------------+
                    | consumer 0: one u64 a slot | consumer 1: ...                 |  that consumer writes
    payloads        +--------------------------------------------------------------+  at a multiple of a page
                    | payload of slot 0 (slot_layout) | slot 1 | ...  slot_bytes   |  workers write their rows
                    +--------------------------------------------------------------+

One writer a record. Records serve recovery and status, never signalling: readiness travels in messages.

A slot record is written state first and state last: SLOT_EMPTY, the fields, then the state that they describe, so that
whoever reads it after a kill trusts only what was finished.

Slots are reserved one after another, with their places in the tables: a ring may have room in its tables for many more
than will ever have memory.

A batch that is larger than a slot takes several, not necessarily adjacent ones, chained by their records; whoever
writes or reads it maps their pages one after another. Slots of whole huge pages begin at such, so that this is possible
wherever the segment lies.

An offer's word has two bits a consumer: c for one that may copy the slot's batch, CONSUMERS + c for one that may have
it as it is. The bit is set before the offer is sent, and cleared when its lease has ended or the slot is claimed:
whoever has no bit cannot take the batch.

A mark is the generation of the slot's batch that this consumer was handed without a copy, written before the hand-out:
a slot whose generation equals a mark may have been written to by its holder.

Locks on the segment file say who lives, never pids: open-file-description locks on single bytes, whose offsets (beyond
any content) are below. A lock ends when the last descriptor of its description closes.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import struct

import xxhash

from prefetchd.wire.errors import ProtocolError

MAGIC = b"PFDRING\0"
LAYOUT_VERSION = 4
PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20

HEADER = struct.Struct("<8sIIQQQQIIQQQQQII32s64s")
HEADER_BYTES = PAGE_BYTES
SPEC_OFFSET = HEADER_BYTES
SPEC_LIMIT_BYTES = PAGE_BYTES
# The header's last field. It is written while others may read it, its first byte last.
PROGRAM_NAME_LIMIT_BYTES = 64
PROGRAM_NAME_OFFSET = HEADER.size - PROGRAM_NAME_LIMIT_BYTES
# In the header's page: how many slots have memory behind them. It only grows.
RESERVED_SLOTS = struct.Struct("<Q")
RESERVED_SLOTS_OFFSET = 512
# And how many are to have.
WANTED_SLOTS_OFFSET = RESERVED_SLOTS_OFFSET + RESERVED_SLOTS.size
ROW_LAYOUT_OFFSET = SPEC_OFFSET + SPEC_LIMIT_BYTES
ROW_LAYOUT_LIMIT_BYTES = 3 * PAGE_BYTES
SLOT_RECORDS_OFFSET = ROW_LAYOUT_OFFSET + ROW_LAYOUT_LIMIT_BYTES

# state, span, generation, epoch, step, payload bytes, digest, next slot + 1 (0: none), plan
SLOT_RECORD = struct.Struct("<IIQQQQQQQ")
SLOT_RECORD_BYTES = 64
SLOT_STATE = struct.Struct("<I")
SLOT_SPAN = struct.Struct("<I")
SLOT_SPAN_OFFSET = SLOT_STATE.size
SLOT_EMPTY, SLOT_FILLING, SLOT_READY, SLOT_CONTINUED = 0, 1, 2, 3

# A slot's word: bit c for consumer c, bit CONSUMERS + c where it may have the batch as it is.
OFFER = struct.Struct("<I")

# pid, cursor, epoch, next step, yielded, waited us, private copies, longest wait us, last next (monotonic ns), held
CONSUMER_RECORD = struct.Struct("<QqQQQQQQQQ")
CONSUMER_RECORD_BYTES = 128
CONSUMER_CURSOR = struct.Struct("<q")
CONSUMER_CURSOR_OFFSET = 8
# After these fields of the record: how many calls of next() have waited how long, by WAIT_BOUNDS_US. The first bound's
# are those that are not in any other; the last one's are longer than all bounds.
WAIT_BOUNDS_US = (100, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000, 60_000_000)
WAIT_COUNTS = struct.Struct("<11I")
WAIT_COUNTS_OFFSET = CONSUMER_RECORD.size
# After those: what memory this consumer's batches come out of, as a place in MEMORY_MODES.
MEMORY_MODE = struct.Struct("<I")
MEMORY_MODE_OFFSET = WAIT_COUNTS_OFFSET + WAIT_COUNTS.size
MEMORY_MODES = ("ordinary", "registered", "staged", "pageable")
# In the cursor's place: the loader is closed, and only batches that it has handed out live on.
DEPARTED = -2
CONSUMERS = 16

MARK = struct.Struct("<Q")

SLOTS_LIMIT = 65_536

LOCK_BASE = 1 << 62
DAEMON_LOCK_OFFSET = LOCK_BASE
CONSUMER_LOCK_OFFSET = LOCK_BASE + 0x1000
# Shared, through the description that workers are lent: while another than our own holds it, a dead daemon's worker
# may still write.
WRITERS_LOCK_OFFSET = LOCK_BASE + 0x10000


@dataclasses.dataclass(frozen=True)
class SegmentHeader:
    """The header's fields. Sizes and offsets in bytes; `created_ns` and `daemon_generation` are for recovery."""

    slots: int
    slot_bytes: int
    created_ns: int
    daemon_generation: int
    fingerprint: str
    row_layout_bytes: int
    spec_bytes: int
    program_name: str
    consumers: int = CONSUMERS

    # Kept once they are known: next() asks for them.

    @functools.cached_property
    def offers_offset(self) -> int:
        return SLOT_RECORDS_OFFSET + _aligned(self.slots * SLOT_RECORD_BYTES, PAGE_BYTES)

    @functools.cached_property
    def consumer_records_offset(self) -> int:
        return self.offers_offset + _aligned(self.slots * OFFER.size, PAGE_BYTES)

    @functools.cached_property
    def marks_offset(self) -> int:
        return self.consumer_records_offset + _aligned(self.consumers * CONSUMER_RECORD_BYTES, PAGE_BYTES)

    @functools.cached_property
    def payload_offset(self) -> int:
        return _aligned(self.marks_offset + self.consumers * self.slots * MARK.size, self.page_bytes)

    @functools.cached_property
    def page_bytes(self) -> int:
        """The alignment of slots: they begin at multiples of this, in the segment and wherever they are mapped one
        after another."""
        return PAGE_BYTES if self.slot_bytes % HUGE_PAGE_BYTES else HUGE_PAGE_BYTES

    @property
    def segment_bytes(self) -> int:
        return self.payload_offset + self.slots * self.slot_bytes

    def bytes_with(self, slots: int) -> int:
        """Returns what the segment takes of memory when `slots` of its slots are reserved, to within a few pages."""
        tables = SLOT_RECORD_BYTES + OFFER.size + self.consumers * MARK.size
        consumers = self.marks_offset - self.consumer_records_offset
        return SLOT_RECORDS_OFFSET + consumers + slots * (tables + self.slot_bytes)

    def tables_of(self, first: int, end: int) -> list[tuple[int, int]]:
        """Lists (begin, end), in bytes, of the records, offers and marks of the slots from `first` to `end`."""
        parts = [(SLOT_RECORDS_OFFSET, SLOT_RECORD_BYTES), (self.offers_offset, OFFER.size)]
        parts += [(self.mark_offset(consumer, 0), MARK.size) for consumer in range(self.consumers)]
        return [(offset + first * size, offset + end * size) for offset, size in parts]

    def slot_record_offset(self, slot: int) -> int:
        return SLOT_RECORDS_OFFSET + slot * SLOT_RECORD_BYTES

    def consumer_record_offset(self, consumer: int) -> int:
        return self.consumer_records_offset + consumer * CONSUMER_RECORD_BYTES

    def mark_offset(self, consumer: int, slot: int) -> int:
        return self.marks_offset + (consumer * self.slots + slot) * MARK.size

    def slot_payload_offset(self, slot: int) -> int:
        return self.payload_offset + slot * self.slot_bytes


def encode_header(header: SegmentHeader) -> bytes:
    """Encodes the header. Raises ProtocolError when the program's name is too long."""
    program_name = header.program_name.encode("utf-8")
    if len(program_name) > PROGRAM_NAME_LIMIT_BYTES:
        raise ProtocolError(f"program name of {len(program_name)} bytes; allowed: {PROGRAM_NAME_LIMIT_BYTES}")
    return HEADER.pack(
        MAGIC,
        LAYOUT_VERSION,
        HEADER_BYTES,
        header.slots,
        header.slot_bytes,
        header.created_ns,
        header.daemon_generation,
        header.consumers,
        SLOT_RECORD_BYTES,
        header.offers_offset,
        header.consumer_records_offset,
        header.marks_offset,
        header.payload_offset,
        header.segment_bytes,
        header.spec_bytes,
        header.row_layout_bytes,
        header.fingerprint.encode("ascii"),
        program_name,
    )


def decode_header(data: bytes | memoryview, segment_bytes: int) -> SegmentHeader:
    """Decodes the header of a segment that is `segment_bytes` long. Raises ProtocolError when it is not ours, of
    another version, or disagrees with its own length."""
    if len(data) < HEADER.size:
        raise ProtocolError(f"a segment of {segment_bytes} bytes is too short for a header")
    fields = HEADER.unpack_from(data)
    magic, version = fields[0], fields[1]
    if magic != MAGIC:
        raise ProtocolError("not a prefetchd ring: wrong magic")
    if version != LAYOUT_VERSION:
        raise ProtocolError(f"ring layout version {version}; this prefetchd reads {LAYOUT_VERSION}")
    try:
        header = SegmentHeader(
            slots=fields[3],
            slot_bytes=fields[4],
            created_ns=fields[5],
            daemon_generation=fields[6],
            consumers=fields[7],
            spec_bytes=fields[14],
            row_layout_bytes=fields[15],
            fingerprint=fields[16].decode("ascii"),
            # None while one is being written (PROGRAM_NAME_OFFSET).
            program_name="" if fields[17][:1] == b"\0" else fields[17].rstrip(b"\0").decode("utf-8"),
        )
    except UnicodeDecodeError:
        raise ProtocolError("a ring's header is damaged: its names are not text") from None
    if header.program_name and not re.fullmatch(r"/[^/\0]+", header.program_name):
        raise ProtocolError("a ring's header is damaged: its program's name is none")
    if (fields[2], fields[8]) != (HEADER_BYTES, SLOT_RECORD_BYTES) or header.slot_bytes % PAGE_BYTES:
        raise ProtocolError("a ring's header is damaged: its record sizes are not this version's")
    # The offsets follow from the counts. They are compared all the same: what is mapped by a damaged header ends the
    # process.
    told = fields[9:14]
    computed = (
        header.offers_offset,
        header.consumer_records_offset,
        header.marks_offset,
        header.payload_offset,
        header.segment_bytes,
    )
    if (
        told != computed
        or header.segment_bytes > segment_bytes
        or not 0 < header.slots <= SLOTS_LIMIT
        or not header.slot_bytes
    ):
        raise ProtocolError(f"a ring's header is damaged: it tells {told}, its counts make {computed}")
    if header.spec_bytes > SPEC_LIMIT_BYTES or header.row_layout_bytes > ROW_LAYOUT_LIMIT_BYTES:
        raise ProtocolError("a ring's header is damaged: spec or row layout longer than their room")
    return header


@dataclasses.dataclass(frozen=True)
class SlotRecord:
    """One slot as its record describes it; `state` is one of the SLOT_ constants.

    The first slot's record describes a batch of `span` slots; `next_slot` leads to the others, whose records are
    SLOT_CONTINUED. It is -1 in the last one. `plan` is the digest of the batch's sample keys where the order is a
    sampler's (plan.keys), else 0.
    """

    state: int
    span: int = 1
    generation: int = 0
    epoch: int = 0
    step: int = 0
    payload_bytes: int = 0
    digest: int = 0
    next_slot: int = -1
    plan: int = 0


def encode_slot_record(record: SlotRecord) -> bytes:
    return SLOT_RECORD.pack(
        record.state,
        record.span,
        record.generation,
        record.epoch,
        record.step,
        record.payload_bytes,
        record.digest,
        record.next_slot + 1,
        record.plan,
    )


def decode_slot_record(data: bytes | memoryview, offset: int = 0) -> SlotRecord:
    state, span, generation, epoch, step, payload_bytes, digest, following, plan = SLOT_RECORD.unpack_from(data, offset)
    return SlotRecord(state, span, generation, epoch, step, payload_bytes, digest, following - 1, plan)


def payload_digest(payload: memoryview) -> int:
    """Computes a slot record's `digest`: the payload's XXH3 of 64 bits, with seed 0 (the specification is in xxhash's
    repository: doc/xxhash_spec.md); 1 if that is 0, which says that none was taken."""
    return xxhash.xxh3_64_intdigest(payload) or 1


def slots_of_batch(data: bytes | memoryview, header: SegmentHeader, slot: int) -> tuple[int, ...]:
    """Returns all slots of the batch whose first one is `slot`, in the order of its bytes. Raises ProtocolError when
    their chain is broken."""
    if not 0 <= slot < header.slots:
        raise ProtocolError(f"slot {slot} of a ring of {header.slots}")
    first = decode_slot_record(data, header.slot_record_offset(slot))
    slots = [slot]
    following = first.next_slot
    while following >= 0:
        # A chain that a kill or another writer has damaged may be a circle.
        if following >= header.slots or len(slots) >= min(first.span, header.slots):
            raise ProtocolError(f"the slots of the batch in slot {slot} do not come to an end")
        slots.append(following)
        following = decode_slot_record(data, header.slot_record_offset(following)).next_slot
    if len(slots) != first.span:
        raise ProtocolError(f"the batch in slot {slot} takes {first.span} slots; its chain has {len(slots)}")
    return tuple(slots)


@dataclasses.dataclass(frozen=True)
class ConsumerRecord:
    """One consumer as its record describes it; times in microseconds unless named otherwise."""

    pid: int
    cursor: int = -1
    epoch: int = 0
    step: int = 0
    yielded: int = 0
    waited_us: int = 0
    private_copies: int = 0
    longest_wait_us: int = 0
    last_next_ns: int = 0
    held: int = 0


def encode_consumer_record(record: ConsumerRecord) -> bytes:
    return CONSUMER_RECORD.pack(*dataclasses.astuple(record))


def decode_consumer_record(data: bytes | memoryview, offset: int = 0) -> ConsumerRecord:
    return ConsumerRecord(*CONSUMER_RECORD.unpack_from(data, offset))


def decode_wait_counts(data: bytes | memoryview, offset: int = 0) -> tuple[int, ...]:
    """Reads from the record at `offset` how many calls of next() waited up to each of WAIT_BOUNDS_US, and longer; the
    first count is what the others leave of the record's yielded batches."""
    longer = WAIT_COUNTS.unpack_from(data, offset + WAIT_COUNTS_OFFSET)
    return (max(0, decode_consumer_record(data, offset).yielded - sum(longer)), *longer)


def decode_memory_mode(data: bytes | memoryview, offset: int = 0) -> str:
    """Reads from the record at `offset` the memory mode; one of a newer writer's is "ordinary"."""
    (mode,) = MEMORY_MODE.unpack_from(data, offset + MEMORY_MODE_OFFSET)
    return MEMORY_MODES[mode] if mode < len(MEMORY_MODES) else MEMORY_MODES[0]


def _aligned(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
