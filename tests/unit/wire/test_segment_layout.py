"""The ring's segment: areas in the order of the picture, aligned, apart; damage is told, never believed."""

from __future__ import annotations

import dataclasses
import itertools
import re

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from prefetchd.wire import segment_layout as layout
from prefetchd.wire.errors import PrefetchdError, ProtocolError
from prefetchd.wire.segment_layout import (
    CONSUMER_RECORD,
    CONSUMER_RECORD_BYTES,
    CONSUMERS,
    HEADER,
    HEADER_BYTES,
    MARK,
    OFFER,
    PAGE_BYTES,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    ROW_LAYOUT_LIMIT_BYTES,
    ROW_LAYOUT_OFFSET,
    SLOT_CONTINUED,
    SLOT_EMPTY,
    SLOT_FILLING,
    SLOT_READY,
    SLOT_RECORD,
    SLOT_RECORD_BYTES,
    SLOT_RECORDS_OFFSET,
    SLOT_STATE,
    SLOTS_LIMIT,
    SPEC_LIMIT_BYTES,
    SPEC_OFFSET,
    WAIT_BOUNDS_US,
    WAIT_COUNTS,
    WAIT_COUNTS_OFFSET,
    ConsumerRecord,
    SegmentHeader,
    SlotRecord,
    decode_consumer_record,
    decode_header,
    decode_slot_record,
    decode_wait_counts,
    encode_consumer_record,
    encode_header,
    encode_slot_record,
    slots_of_batch,
)
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from tests.budgets import tries
from tests.unit.wire.golden.examples import HEADER as EXAMPLE

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)

headers = st.builds(
    SegmentHeader,
    slots=st.integers(1, SLOTS_LIMIT),
    slot_bytes=st.integers(1, 1 << 28).map(lambda pages: pages * PAGE_BYTES),
    created_ns=U64,
    daemon_generation=U64,
    fingerprint=st.text("0123456789abcdef", min_size=32, max_size=32),
    row_layout_bytes=st.integers(0, ROW_LAYOUT_LIMIT_BYTES),
    spec_bytes=st.integers(0, SPEC_LIMIT_BYTES),
    program_name=st.just("") | st.text("abcdef-0123456789", min_size=1, max_size=31).map("/".__add__),
    consumers=st.integers(0, 64),
)


def areas(header: SegmentHeader) -> list[tuple[int, int, int]]:
    """(begin, end, alignment) of all that has a place, the ends as the sizes of the contents tell."""
    slots, consumers = header.slots, header.consumers
    found = [
        (0, HEADER.size, PAGE_BYTES),
        (RESERVED_SLOTS_OFFSET, RESERVED_SLOTS_OFFSET + RESERVED_SLOTS.size, 64),
        (SPEC_OFFSET, SPEC_OFFSET + SPEC_LIMIT_BYTES, PAGE_BYTES),
        (ROW_LAYOUT_OFFSET, ROW_LAYOUT_OFFSET + ROW_LAYOUT_LIMIT_BYTES, PAGE_BYTES),
    ]
    for slot in sorted({0, slots // 2, slots - 1}):
        at = header.slot_record_offset(slot)
        found.append((at, at + SLOT_RECORD.size, 64))
    found.append((header.offers_offset, header.offers_offset + slots * OFFER.size, PAGE_BYTES))
    for consumer in sorted({0, consumers - 1}) if consumers else ():
        at = header.consumer_record_offset(consumer)
        found.append((at, at + CONSUMER_RECORD.size, 128))
    places = itertools.product(sorted({0, consumers - 1}), sorted({0, slots - 1})) if consumers else ()
    for consumer, slot in places:
        at = header.mark_offset(consumer, slot)
        found.append((at, at + MARK.size, MARK.size))
    for slot in sorted({0, slots // 2, slots - 1}):
        at = header.slot_payload_offset(slot)
        found.append((at, at + header.slot_bytes, PAGE_BYTES))
    return found


@given(headers)
@tries(200)
def test_areas_come_in_order_aligned_and_apart(header):
    found = areas(header)
    for (begin, end, alignment), (following, _, _) in itertools.pairwise(found):
        assert begin % alignment == 0
        assert begin < end <= following
    assert found[-1][1] == header.segment_bytes


@given(headers)
@tries(100)
def test_neighbouring_places_are_one_record_apart(header):
    assert header.slot_record_offset(1) - header.slot_record_offset(0) == SLOT_RECORD_BYTES
    assert header.consumer_record_offset(1) - header.consumer_record_offset(0) == CONSUMER_RECORD_BYTES
    assert header.mark_offset(0, 1) - header.mark_offset(0, 0) == MARK.size
    assert header.mark_offset(1, 0) - header.mark_offset(0, header.slots - 1) == MARK.size
    assert header.slot_payload_offset(1) - header.slot_payload_offset(0) == header.slot_bytes


def test_records_fit_their_rooms_and_no_two_writers_share_a_cache_line():
    assert HEADER.size <= HEADER_BYTES
    assert SLOT_RECORD.size <= SLOT_RECORD_BYTES
    assert CONSUMER_RECORD.size <= CONSUMER_RECORD_BYTES
    assert SLOT_RECORD_BYTES % 64 == CONSUMER_RECORD_BYTES % 64 == 0
    assert 8 * OFFER.size == 2 * CONSUMERS


def test_the_state_comes_first_in_a_slot_record():
    """It is written first and last, alone."""
    record = encode_slot_record(SlotRecord(SLOT_READY, 2, 3))
    assert SLOT_STATE.unpack_from(record) == (SLOT_READY,)
    assert len({SLOT_EMPTY, SLOT_FILLING, SLOT_READY, SLOT_CONTINUED}) == 4
    assert decode_slot_record(bytes(SLOT_RECORD_BYTES)).state == SLOT_EMPTY, "fresh memory is an empty slot"


def test_the_picture_has_the_areas_in_the_order_and_sizes_of_the_code():
    offsets = {
        "offset 0": 0,
        "SPEC": SPEC_OFFSET,
        "slot_records": SLOT_RECORDS_OFFSET,
        "offers": EXAMPLE.offers_offset,
        "consumer_records": EXAMPLE.consumer_records_offset,
        "marks": EXAMPLE.marks_offset,
        "payloads": EXAMPLE.payload_offset,
    }
    drawn = re.findall(r"^ {4}(\w[\w ]*?) *\+-", layout.__doc__, re.MULTILINE)
    assert drawn == sorted(offsets, key=offsets.__getitem__)
    sizes = re.findall(r"\| (header|stream spec|row layout|record of \w+)[^\n]*? (\d+) bytes", layout.__doc__)
    assert sizes == [
        ("header", str(HEADER_BYTES)),
        ("stream spec", str(SPEC_LIMIT_BYTES)),
        ("row layout", str(ROW_LAYOUT_LIMIT_BYTES)),
        ("record of slot", str(SLOT_RECORD_BYTES)),
        ("record of consumer", str(CONSUMER_RECORD_BYTES)),
    ]


# --- header ---


@given(headers)
@tries(200)
def test_a_header_round_trips(header):
    assert decode_header(encode_header(header), header.segment_bytes) == header
    assert decode_header(memoryview(encode_header(header).ljust(HEADER_BYTES, b"\0")), 1 << 63) == header


def mutated(place: int, value: object) -> bytes:
    fields = list(HEADER.unpack(encode_header(EXAMPLE)))
    assert fields[place] != value
    fields[place] = value
    return HEADER.pack(*fields)


FIELDS = (
    "magic",
    "version",
    "header bytes",
    "slots",
    "slot bytes",
    "created",
    "daemon generation",
    "consumers",
    "slot record bytes",
    "offers offset",
    "consumer records offset",
    "marks offset",
    "payload offset",
    "segment bytes",
    "spec bytes",
    "row layout bytes",
    "fingerprint",
    "program name",
)
DAMAGE = {
    "magic": [b"PFDRINH\0", b"\0" * 8],
    "version": [0, 1, 2, 3, 5, 1 << 31],
    "header bytes": [0, 160, 8192],
    "slots": [0, 4, 6, 65, SLOTS_LIMIT + 1, 1 << 63, (1 << 64) - 1],
    "slot bytes": [0, 4096, 8191, 1 << 40, (1 << 64) - 1],
    "consumers": [0, 200, (1 << 32) - 1],
    "slot record bytes": [0, 32, 128],
    "offers offset": [0, EXAMPLE.offers_offset + 4096, (1 << 64) - 1],
    "consumer records offset": [0, EXAMPLE.consumer_records_offset + 4096, (1 << 64) - 1],
    "marks offset": [0, EXAMPLE.marks_offset - 4096, (1 << 64) - 1],
    "payload offset": [0, EXAMPLE.payload_offset + 1, (1 << 64) - 1],
    "segment bytes": [0, EXAMPLE.segment_bytes - 1, EXAMPLE.segment_bytes + 1],
    "spec bytes": [SPEC_LIMIT_BYTES + 1, (1 << 32) - 1],
    "row layout bytes": [ROW_LAYOUT_LIMIT_BYTES + 1, (1 << 32) - 1],
    "fingerprint": [b"\xff" * 32],
    "program name": [b"\xff".ljust(32, b"\0")],
}


def test_the_fields_are_named_here_in_the_order_of_the_header():
    assert len(FIELDS) == len(HEADER.unpack(encode_header(EXAMPLE)))
    assert set(FIELDS) - set(DAMAGE) == {"created", "daemon generation"}, "these may have any value"


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in DAMAGE.items() for value in values], ids=repr
)
def test_a_damaged_header_is_refused(field, value):
    with pytest.raises(ProtocolError):
        decode_header(mutated(FIELDS.index(field), value), 1 << 63)


def test_a_header_that_was_cut_short_is_refused():
    data = encode_header(EXAMPLE)
    for length in (0, 8, HEADER.size - 1):
        with pytest.raises(ProtocolError, match="too short for a header"):
            decode_header(data[:length], EXAMPLE.segment_bytes)


def test_a_segment_that_was_cut_short_is_refused():
    data = encode_header(EXAMPLE)
    assert decode_header(data, EXAMPLE.segment_bytes) == EXAMPLE
    assert decode_header(data, EXAMPLE.segment_bytes + 1) == EXAMPLE
    for length in (0, HEADER_BYTES, EXAMPLE.segment_bytes - 1):
        with pytest.raises(ProtocolError, match="damaged"):
            decode_header(data, length)


@given(st.binary(max_size=HEADER.size + 40))
@tries(100)
def test_random_bytes_are_no_header(data):
    with pytest.raises(ProtocolError):
        decode_header(data, 1 << 20)


@given(st.data())
@tries(300)
def test_a_header_with_flipped_bits_is_refused_or_stays_within_its_segment(data):
    damaged = bytearray(encode_header(EXAMPLE))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        header = decode_header(damaged, EXAMPLE.segment_bytes)
    except ProtocolError:
        return
    ends = [end for _, end, _ in areas(header)]
    assert ends == sorted(ends)
    assert ends[-1] <= EXAMPLE.segment_bytes


def test_a_program_name_is_kept_whole_or_refused():
    """A name that is cut is the name of another segment, or of none."""
    longest = "/prefetchd-0a1b2c3d-program-" + "1" * 4
    header = dataclasses.replace(EXAMPLE, program_name=longest)
    assert decode_header(encode_header(header), header.segment_bytes) == header
    header = dataclasses.replace(EXAMPLE, program_name=longest + "1")
    try:
        data = encode_header(header)
    except (PrefetchdError, ValueError):
        return
    assert decode_header(data, header.segment_bytes).program_name == header.program_name


def test_the_longest_spec_fits_its_room():
    most = {
        "seed": (1 << 63) - 1,
        "length": 1 << 62,
        "batch_size": 1 << 62,
        "rank": (1 << 31) - 1,
        "world_size": 1 << 31,
        "on_error": "substitute",
        "seed_source": "argument",
        "buffer_bytes": 1 << 62,
        "buffer_batches": 1 << 62,
        "minimum_slots": 1 << 16,
        "timeout_s": 1e300,
    } | dict.fromkeys(("logical_shards", "low_watermark", "high_watermark", "lookback", "workers"), 1 << 31)
    spec = StreamSpec(fingerprint="f" * 32, order="sequential", name="\N{GRINNING FACE}" * 200, **most)
    assert len(encode_spec(spec)) <= SPEC_LIMIT_BYTES


# --- records ---


@given(st.builds(SlotRecord, U32, U32, U64, U64, U64, U64, U64, st.integers(-1, (1 << 64) - 2), U64), st.integers(0, 9))
@tries(100)
def test_a_slot_record_round_trips_at_any_offset(record, offset):
    data = b"\xee" * offset + encode_slot_record(record) + b"\xee"
    assert decode_slot_record(data, offset) == record
    assert decode_slot_record(memoryview(data), offset) == record


consumer_records = st.builds(
    ConsumerRecord, U64, st.integers(-(1 << 63), (1 << 63) - 1), U64, U64, U64, U64, U64, U64, U64, U64
)


@given(consumer_records, st.integers(0, 9))
@tries(100)
def test_a_consumer_record_round_trips_at_any_offset(record, offset):
    data = b"\xee" * offset + encode_consumer_record(record) + b"\xee"
    assert decode_consumer_record(data, offset) == record


def test_every_field_of_a_record_has_its_own_place():
    slot, consumer = SlotRecord(*range(1, 10)), ConsumerRecord(*range(1, 11))
    assert decode_slot_record(encode_slot_record(slot)) == slot
    assert decode_consumer_record(encode_consumer_record(consumer)) == consumer


# --- the slots of a batch ---


def with_chain(chain: dict[int, int], span: int, slots: int = 6) -> tuple[bytearray, SegmentHeader]:
    """A segment's beginning whose slot records lead on as `chain` says; every record tells `span`."""
    header = dataclasses.replace(EXAMPLE, slots=slots)
    data = bytearray(header.payload_offset)
    for slot, following in chain.items():
        at = header.slot_record_offset(slot)
        data[at : at + SLOT_RECORD.size] = encode_slot_record(SlotRecord(SLOT_READY, span, 1, next_slot=following))
    return data, header


@given(st.permutations(range(12)), st.integers(1, 12))
@tries(100)
def test_the_slots_of_a_batch_are_its_chain_in_order(order, span):
    chain = order[:span]
    data, header = with_chain(dict(zip(chain, [*chain[1:], -1])), span, slots=12)
    assert slots_of_batch(data, header, chain[0]) == tuple(chain)
    assert slots_of_batch(memoryview(data), header, chain[0]) == tuple(chain)


@pytest.mark.parametrize(
    ("chain", "span"),
    [
        ({0: 0}, 1),
        ({0: 0}, 6),
        ({0: 1, 1: 0}, 2),
        ({0: 1, 1: 1}, 3),
        ({0: 5, 5: 3, 3: 5}, 6),
        ({0: 6}, 2),
        ({0: 1, 1: 6}, 3),
        ({0: (1 << 64) - 2}, 2),
        ({0: 1, 1: -1}, 1),
        ({0: 1, 1: 2, 2: -1}, 2),
    ],
    ids=repr,
)
def test_a_chain_that_turns_back_leaves_the_ring_or_goes_on_is_refused(chain, span):
    data, header = with_chain(chain, span)
    with pytest.raises(ProtocolError, match="slot 0"):
        slots_of_batch(data, header, 0)


def test_a_chain_that_ends_too_early_is_refused():
    """The batch's bytes would go on behind the last slot that was found."""
    data, header = with_chain({0: 1, 1: -1}, span=3)
    with pytest.raises(ProtocolError):
        slots_of_batch(data, header, 0)


def test_a_cycle_is_found_in_as_many_reads_as_there_are_slots(monkeypatch):
    """Whatever span a damaged record tells."""
    data, header = with_chain({0: 1, 1: 0}, span=(1 << 32) - 1)
    reads = itertools.count(1)

    def counted(*args):
        if next(reads) > header.slots + 1:
            pytest.fail("went round more often than there are slots")
        return decode_slot_record(*args)

    monkeypatch.setattr(layout, "decode_slot_record", counted)
    with pytest.raises(ProtocolError):
        slots_of_batch(data, header, 0)


@given(st.lists(st.integers(-1, 8), min_size=6, max_size=6), st.integers(0, 9), st.integers(0, 5))
@tries(200)
def test_whatever_the_chain_what_is_returned_are_distinct_slots_of_the_ring(nexts, span, first):
    data, header = with_chain(dict(enumerate(nexts)), span)
    try:
        slots = slots_of_batch(data, header, first)
    except ProtocolError:
        return
    assert slots[0] == first
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < header.slots for slot in slots)


# --- locks ---


def test_lock_offsets_lie_apart_beyond_any_content_and_within_what_a_file_may_have():
    daemon = range(layout.DAEMON_LOCK_OFFSET, layout.DAEMON_LOCK_OFFSET + 1)
    consumers = range(layout.CONSUMER_LOCK_OFFSET, layout.CONSUMER_LOCK_OFFSET + CONSUMERS)
    writers = range(layout.WRITERS_LOCK_OFFSET, layout.WRITERS_LOCK_OFFSET + 1)
    assert daemon.stop <= consumers.start
    assert consumers.stop <= writers.start
    assert writers.stop < 1 << 63


@given(headers)
@tries(50)
def test_no_ring_that_a_machine_can_hold_reaches_the_lock_offsets(header):
    assume(header.segment_bytes <= 1 << 57)  # the widest address space there is
    assert header.segment_bytes < layout.DAEMON_LOCK_OFFSET


def test_waits_are_counted_after_the_record_and_those_without_one_are_the_rest():
    record = bytearray(CONSUMER_RECORD_BYTES)
    record[: CONSUMER_RECORD.size] = encode_consumer_record(ConsumerRecord(1, yielded=100))
    WAIT_COUNTS.pack_into(record, WAIT_COUNTS_OFFSET, *range(11))
    assert decode_wait_counts(record) == (100 - 55, *range(11))
    assert len(decode_wait_counts(record)) == len(WAIT_BOUNDS_US) + 1
    assert CONSUMER_RECORD.size + WAIT_COUNTS.size <= CONSUMER_RECORD_BYTES
    record[: CONSUMER_RECORD.size] = encode_consumer_record(ConsumerRecord(1, yielded=50))
    assert decode_wait_counts(record)[0] == 0


@pytest.mark.parametrize("name", ["/prefetchd-1\0-program", "/../prefetchd", "/a/b", "/", "prefetchd", "/\0"])
def test_a_program_s_name_that_is_no_name_of_shared_memory_is_refused(name):
    data = encode_header(dataclasses.replace(EXAMPLE, program_name=name))
    with pytest.raises(ProtocolError, match="name"):
        decode_header(data, EXAMPLE.segment_bytes)
