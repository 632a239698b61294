"""What becomes of a ring that was asked for: how large its slots are, who is told of it, what is done without it."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.commands import CreateRing, GrowRing, LendRing, Log, ShareRing
from prefetchd.daemon.engine.rings import Rings
from prefetchd.daemon.engine.stream.consumers import Consumer
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.ring.capacity import Bounds
from tests.unit.daemon.engine.stream.rooms import SPEC, into, stream_of, walks, works

OF_FILES = dataclasses.replace(SPEC, store="files", directory="/batches")
BATCH_BYTES = 1600


class Bed:
    """A stream that has measured its first batch; `yields` says whether streams without a consumer give up enough."""

    def __init__(self, spec=SPEC, *, slots: int = 0, layout: bytes = b"") -> None:
        self.commands: list = []
        self.failures: list[tuple[str, str]] = []
        self.asked_for_bytes: list[int] = []
        self.yields = False
        self.stream = stream_of(slots, self.commands, spec)
        self.stream.batch_bytes, self.stream.layout = BATCH_BYTES, layout
        self.stream.wanted_slots = slots
        self.rings = Rings(
            {1: self.stream}, self, self.commands, lambda stream, code, text: self.failures.append((code, text))
        )

    def yield_memory(self, stream, short_bytes: int) -> bool:
        self.asked_for_bytes.append(short_bytes)
        return self.yields

    def short(self, asked: int, slots: int) -> None:
        self.rings.short(1, asked, slots, "no room", 300)

    def said(self, kind) -> list:
        return [each for each in self.commands if isinstance(each, kind)]


@pytest.mark.parametrize(
    ("spec", "layout", "slot_bytes"),
    [(SPEC, b"layout", BATCH_BYTES), (SPEC, b"", 2000), (OF_FILES, b"layout", 1700), (OF_FILES, b"", 1700)],
    ids=["rows", "whole", "files of rows", "files"],
)
def test_what_may_differ_from_batch_to_batch_has_room_to_spare(spec, layout, slot_bytes):
    bed = Bed(spec, layout=layout)
    bed.rings.ask_for(bed.stream)
    assert bed.commands == [CreateRing(1, BATCH_BYTES, slot_bytes, layout)]


def created(bed: Bed, slots: int = 16, wanted_slots: int = 4) -> None:
    bed.rings.created(1, slots, wanted_slots, 2048, 9, Bounds(6, slots))


def test_a_ring_that_was_made_is_as_the_shell_says():
    bed = Bed()
    created(bed)
    stream = bed.stream
    assert (stream.ring_id, stream.slot_bytes, stream.wanted_slots, stream.first_slots) == (9, 2048, 4, 4)
    assert (stream.window.ring.slots, stream.window.ring.reserved) == (16, 0)
    assert stream.bounds == Bounds(6, 16)
    assert stream.window.lookback.ring_slots == 6


def test_batches_are_claimed_once_there_is_memory_behind_its_slots():
    bed = Bed()
    walks(bed.stream.window)
    measured = bed.stream.claims.next_piece(7, into(1))
    bed.stream.filling.measured(measured, 7, by_rows=True, pieces=1)
    created(bed)
    assert bed.stream.claims.next_piece(7, into(1)) is None
    bed.rings.reserved(1, 2)
    assert [bed.stream.claims.next_piece(7, into(1)).batch.position[1] for _ in range(2)] == [0, 1]
    assert bed.stream.claims.next_piece(7, into(1)) is None


def test_workers_that_are_ready_are_lent_it_and_the_others_later():
    bed = Bed()
    ready, starting = works(bed.stream, 7), works(bed.stream, 8, WorkerStage.STARTING)
    created(bed)
    assert bed.said(LendRing) == [LendRing(7, 1)]
    assert (ready.has_ring, starting.has_ring) == (True, False)


def test_every_consumer_is_sent_it():
    bed = Bed()
    bed.stream.consumers = {each: Consumer(each, 100, each, 1, True) for each in (5, 6)}
    created(bed)
    assert bed.said(ShareRing) == [ShareRing(5, 1), ShareRing(6, 1)]


def test_one_that_cannot_be_made_fails_its_stream():
    bed = Bed()
    bed.rings.failed(1, "no_space", "no room", 300)
    assert bed.failures == [("no_space", "no room")]
    assert bed.said(CreateRing) == []


def test_it_is_tried_again_when_others_give_up_their_memory():
    bed = Bed()
    bed.yields = True
    bed.rings.failed(1, "no_space", "no room", 300)
    assert bed.asked_for_bytes == [300]
    assert bed.failures == []
    assert len(bed.said(CreateRing)) == 1


def test_when_it_cannot_grow_others_give_up_their_memory_and_it_is_asked_for_again():
    bed = Bed(slots=4)
    bed.stream.wanted_slots = 8
    bed.yields = True
    bed.short(8, 4)
    assert bed.commands == [GrowRing(1, 8)]


def test_it_stays_as_it_is_when_that_is_enough_to_go_on():
    bed = Bed(slots=4)
    bed.stream.wanted_slots = 8
    bed.short(8, 4)
    assert bed.failures == []
    assert bed.stream.wanted_slots == 4
    assert [each.event for each in bed.said(Log)] == ["ring stays small"]


def test_its_stream_fails_when_that_is_less_than_the_smallest_ring():
    bed = Bed(slots=1)
    bed.stream.wanted_slots = 8
    assert SPEC.minimum_slots > 1
    bed.short(8, 1)
    assert bed.failures == [("no_space", "no room")]


def test_an_answer_to_what_is_no_longer_asked_for_changes_nothing():
    bed = Bed(slots=4)
    bed.stream.wanted_slots = 12
    bed.short(8, 4)
    assert (bed.commands, bed.asked_for_bytes, bed.stream.wanted_slots) == ([], [], 12)


def test_nothing_is_made_of_a_stream_that_was_dropped_meanwhile():
    bed = Bed()
    bed.rings.created(2, 16, 4, 2048, 9, Bounds(6, 16))
    bed.rings.reserved(2, 4)
    bed.rings.failed(2, "no_space", "no room", 300)
    bed.rings.short(2, 8, 4, "no room", 300)
    assert (bed.commands, bed.failures, bed.asked_for_bytes) == ([], [], [])


def test_memory_behind_more_slots_lets_what_lies_behind_be_longer():
    bed = Bed()
    created(bed)
    bed.stream.refused_slots = 8
    bed.rings.reserved(1, 10)
    assert (bed.stream.refused_slots, bed.stream.window.lookback.ring_slots) == (0, 10)
