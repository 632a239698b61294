"""What a dead daemon's ring is read as."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.adoption import FoundBatch, FoundConsumer, FoundRing, found_batches, last_generation
from prefetchd.ring.offers import Offers
from prefetchd.ring.policy import Grant
from prefetchd.wire.messages import Published
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_EMPTY, SLOT_FILLING, SLOT_READY, SlotRecord

FREE = SlotRecord(SLOT_EMPTY)


def ready(step: int, generation: int, **fields) -> SlotRecord:
    return SlotRecord(SLOT_READY, generation=generation, step=step, payload_bytes=90, **fields)


def ring_of(*records: SlotRecord, offers: tuple[int, ...] = (), consumers: tuple[FoundConsumer, ...] = ()) -> FoundRing:
    offers = offers or (0,) * len(records)
    return FoundRing(1, 8, len(records), 100, b"", True, records, offers, consumers)


def consumer(record: int, *marks: int) -> FoundConsumer:
    return FoundConsumer(record, 1, True, None, marks)


def steps(found: FoundRing) -> list[int]:
    return [batch.position[1] for batch in found_batches(found)]


def test_the_latest_batch_comes_first():
    assert steps(ring_of(ready(7, 3), ready(8, 5), ready(6, 4))) == [8, 6, 7]


def test_what_is_ready_or_was_being_filled_is_a_batch_and_nothing_else():
    filling = SlotRecord(SLOT_FILLING, generation=2, step=1)
    found = found_batches(ring_of(ready(0, 1), filling, FREE))
    assert [(batch.position[1], batch.filling) for batch in found] == [(1, True), (0, False)]


def chained(first: int, second: int, third: int) -> FoundRing:
    """A batch of three slots, whose records are of these generations."""
    return ring_of(
        ready(4, first, span=3, next_slot=2),
        SlotRecord(SLOT_CONTINUED, generation=third),
        SlotRecord(SLOT_CONTINUED, generation=second, next_slot=1),
    )


def test_a_batch_has_the_slots_of_its_chain_in_the_order_of_its_bytes():
    (batch,) = found_batches(chained(5, 5, 5))
    assert batch.grant == Grant((0, 2, 1), 5)


def test_a_batch_may_begin_behind_its_other_slots():
    (batch,) = found_batches(ring_of(SlotRecord(SLOT_CONTINUED, generation=5), ready(4, 5, span=2, next_slot=0)))
    assert batch.grant == Grant((1, 0), 5)


def test_a_batch_of_which_a_slot_was_claimed_anew_is_none():
    assert steps(chained(5, 6, 5)) == []
    assert steps(chained(5, 5, 6)) == []
    taken = ring_of(ready(4, 5, span=2, next_slot=1), ready(9, 6))
    assert steps(taken) == [9]


def test_a_chain_that_is_no_chain_is_no_batch():
    assert steps(ring_of(ready(4, 5, span=2))) == [], "shorter than it says"
    assert steps(ring_of(ready(4, 5, span=2, next_slot=1))) == [], "it leaves the ring"
    longer = SlotRecord(SLOT_CONTINUED, generation=5, next_slot=1)
    assert steps(ring_of(ready(4, 5, span=2, next_slot=1), longer)) == [], "it goes round"


def test_who_may_copy_a_batch_and_who_may_have_it_is_told_apart():
    offers = Offers([0, 0])
    offers.record(3, Published(((1, 0, 0, 1, 0, 5),)))
    offers.record(4, Published(((1, 0, 1, 0, 1, 6),)))
    later, earlier = found_batches(ring_of(ready(0, 5), ready(1, 6), offers=offers.words(2)))
    assert (earlier.copy, earlier.have) == ({3}, set())
    assert (later.copy, later.have) == (set(), {4})


def test_who_was_handed_a_batch_has_its_generation_for_a_mark():
    (batch,) = found_batches(ring_of(ready(0, 5), consumers=(consumer(1, 5), consumer(2, 4), consumer(3))))
    assert batch.handed == {1}, "2 had the batch that was there before, and 3 has marked nothing"


def test_a_ready_batch_goes_on_as_it_was():
    (found,) = found_batches(ring_of(ready(4, 5, digest=17)))
    batch = found.batch(3, whole=True, written=True)
    assert (batch.position, batch.rows, batch.grant) == ((0, 4), 3, found.grant)
    assert (batch.filled, batch.whole, batch.written) == (True, True, True)
    assert (batch.payload_bytes, batch.digest) == (90, 17)


def test_one_of_a_sampler_s_plan_is_to_be_verified_against_the_next_plan():
    def adopted(plan: int):
        found = FoundBatch(Grant((0,), 5), (0, 4), 90, 0, False, frozenset(), frozenset(), frozenset(), plan)
        return found.batch(3, whole=False, written=False)

    assert not adopted(plan=11).plan_verified
    assert adopted(plan=11).plan == 11
    assert adopted(plan=0).plan_verified, "the order is arithmetic"


def test_generations_go_on_after_the_highest_even_if_its_claim_was_cut_short():
    assert last_generation(ring_of(ready(0, 5), SlotRecord(SLOT_CONTINUED, generation=9))) == 10
    assert last_generation(ring_of()) == 1
