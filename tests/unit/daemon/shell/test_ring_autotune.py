"""Rings of a real engine under the daemon's tuner: who grows, whose memory it is, who is left alone."""

from __future__ import annotations

import dataclasses
import errno

import pytest

from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.engine.history import Counts, History
from prefetchd.daemon.shell import ring_autotune
from prefetchd.daemon.shell.ring_autotune import RingAutotune
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import SLOT_BYTES, World

SPEC = StreamSpec("0" * 32, 0, "sequential", 6000, 3)
SLOTS = 16


class Bed:
    """Streams whose trainers need what `burst_s` says: seconds of waiting in each burst of ten seconds; 0: they never
    wait, and most of the ring is always ready. In a quarter of a second they take `taken` batches. `room_slots` is what
    all rings may have more."""

    def __init__(self, monkeypatch, *specs: StreamSpec, room_slots: int = 1000, slots: int = SLOTS) -> None:
        self.world = World(slots=slots, by_rows=False)
        self.world.most_slots = 200
        self.world.engine.limits = Limits(autotune=True)
        for spec in specs:
            trainer = self.world.join(spec)
            trainer.place(1, 0, 0, False)
            self.world.come_to_rest()
        self.streams = list(self.world.engine.streams.values())
        self.histories = {each.number: History() for each in self.streams}
        self.counts = {each.number: Counts(workers=2) for each in self.streams}
        self.burst_s = dict.fromkeys(self.histories, 0.0)
        self.room_slots = room_slots
        self.free_bytes = 1 << 40
        self.has_device = False
        self.taken = 5
        self.changes: list = []
        monkeypatch.setattr(ring_autotune, "left_bytes", lambda: self.free_bytes)
        self.tuner = RingAutotune(self.world.engine, self, self, lambda *change: self.changes.append(change))
        self.now_s = 0.0

    def history(self, stream: int) -> History:
        return self.histories[stream]

    def is_pinned(self, stream: int) -> bool:
        return self.has_device

    def growth_room(self, stream: int) -> tuple[int, int]:
        used = sum(each.window.ring.reserved - SLOTS for each in self.streams)
        return 1 << 40, max(0, self.room_slots - used) * SLOT_BYTES

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            for number, history in self.histories.items():
                self._observe(number, history)
            self.tuner.look(self.now_s)
            self.world.run()
            self.world.come_to_rest()

    def _observe(self, number: int, history: History) -> None:
        """In each ten seconds the ring is full for four, then the trainer waits, then it is full again."""
        before, waits_s, at_s = self.counts[number], self.burst_s[number], self.now_s % 10
        waited_s = before.consumers[0][1] if before.consumers else 0.0
        is_waiting = waits_s > 0 and 4 < at_s <= 4 + waits_s
        self.counts[number] = dataclasses.replace(
            before,
            batches=before.batches + 5,
            consumed=before.consumed + self.taken,
            fill_s=before.fill_s + 0.1,
            ready_share=0.0 if is_waiting else 1.0,
            is_full=not is_waiting,
            consumers=((number, waited_s + (0.25 if is_waiting else 0.0)),),
        )
        history.observe(self.counts[number], self.now_s)

    def slots(self) -> list[int]:
        return [each.wanted_slots for each in self.streams]


@pytest.fixture
def bed(monkeypatch):
    return lambda *specs, **arguments: Bed(monkeypatch, *(specs or (SPEC,)), **arguments)


def test_a_ring_that_bursts_empty_grows(bed):
    found = bed()
    found.burst_s[found.streams[0].number] = 1.0
    found.run(30)
    stream, change, _ = found.changes[0]
    assert (stream, change.before) == (found.streams[0], SLOTS)
    assert found.streams[0].window.ring.reserved == change.batches > SLOTS


def test_one_that_is_no_better_for_it_is_to_have_what_it_had(bed):
    found = bed()
    found.burst_s[found.streams[0].number] = 1.0
    found.run(120)
    assert found.changes[1][1].batches == SLOTS
    assert found.slots() == [SLOTS]


def test_a_ring_whose_trainer_never_waits_stays(bed):
    found = bed()
    found.run(90)
    assert (found.slots(), found.changes) == ([SLOTS], [])


def test_what_nobody_needs_for_a_minute_is_given_back_but_for_ten_seconds(bed):
    found = bed(slots=100)
    found.taken = 1
    found.run(70)
    assert found.slots() == [40]
    assert found.changes[0][1].why == "40 were enough in the last 60 s"


@pytest.mark.parametrize("kept", [{"lookback": 4}, {}], ids=["behind its consumers", "pinned"])
def test_a_ring_whose_memory_would_not_go_or_that_keeps_what_was_used_gives_nothing_back(bed, kept):
    found = bed(dataclasses.replace(SPEC, **kept), slots=100)
    found.has_device = not kept
    found.taken = 1
    found.run(130)
    assert found.slots() == [100]


@pytest.mark.parametrize(
    "said", [{"buffer_batches": SLOTS}, {"buffer_bytes": SLOTS * SLOT_BYTES}, {"low_watermark": 2, "high_watermark": 9}]
)
def test_what_somebody_has_said_stays(bed, said):
    found = bed(dataclasses.replace(SPEC, **said))
    found.burst_s[found.streams[0].number] = 1.0
    found.run(60)
    assert (found.slots(), found.changes) == ([SLOTS], [])


def test_no_more_than_there_is_room_for(bed):
    found = bed(room_slots=5)
    found.burst_s[found.streams[0].number] = 1.0
    found.run(60)
    assert max([SLOTS, *(change.batches for _, change, _ in found.changes)]) == SLOTS + 5


def test_no_further_ahead_than_two_epochs(bed):
    found = bed(dataclasses.replace(SPEC, length=30))
    found.burst_s[found.streams[0].number] = 1.0
    found.run(60)
    assert max(change.batches for _, change, _ in found.changes) == 20


def test_a_ring_with_batches_to_spare_gives_them_to_one_that_lacks_them(bed):
    found = bed(SPEC, dataclasses.replace(SPEC, fingerprint="1" * 32), room_slots=0)
    calm, bursty = found.streams
    found.run(70)
    assert found.changes == []
    found.burst_s[bursty.number] = 1.0
    found.run(40)
    # Nobody takes its batches in this world: what is ready keeps its slots until then.
    assert calm.wanted_slots < SLOTS
    given = next(change for stream, change, _ in found.changes if stream is calm)
    assert given.why == f"stream {bursty.name!r} needs it"


def test_when_memory_is_short_what_is_to_spare_goes_without_being_asked_for(bed):
    found = bed()
    found.run(70)
    found.free_bytes >>= 4
    found.run(6)
    assert found.slots()[0] < SLOTS
    assert found.changes[0][1].why.endswith("MiB of memory are free")


def test_where_nothing_can_be_opened_what_was_known_of_memory_holds(bed, monkeypatch):
    found = bed()

    def none_left():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(ring_autotune, "left_bytes", none_left)
    found.burst_s[found.streams[0].number] = 1.0
    found.run(30)
    assert found.changes


def test_what_a_ring_may_not_have_is_not_taken_from_others(bed):
    other = dataclasses.replace(SPEC, fingerprint="1" * 32, length=6)
    found = bed(SPEC, other, room_slots=0)
    found.run(70)
    found.burst_s[found.streams[1].number] = 1.0
    found.run(60)
    assert found.changes == [], "two epochs of it are in its ring"
