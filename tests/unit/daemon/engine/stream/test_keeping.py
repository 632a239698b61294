"""Streams that the daemon keeps: filled for a cursor of its own that goes where it is told. No processes, no files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefetchd.daemon.engine.commands import FreeSlot, WriteSlot
from prefetchd.daemon.engine.engine import Engine, Limits
from prefetchd.daemon.engine.stream.keeping import FiniteEpochs, is_warm, planned
from prefetchd.wire.messages import MEASURE, Fill, Filled, Hello, Measured, Unfit
from prefetchd.wire.segment_layout import SLOT_READY
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from tests.budgets import tries

KEEPER = -2
STEPS = 20
BATCH_BYTES = 4096


class Kept:
    """An engine with one kept stream of files, whose workers do at once what they are told; and its directory, as what
    the engine's commands make of it."""

    def __init__(self, slots=8, wide=(), **spec):
        """Batches at `wide` take half the ring."""
        self.wide = wide
        self.engine = Engine(Limits(2, 2))
        self.slots = slots
        self.files: dict[tuple[int, int], tuple[int, int]] = {}
        self.records = {}
        made = StreamSpec(
            "ab" * 16,
            0,
            "sequential",
            STEPS * 4,
            4,
            name="s",
            store="files",
            directory="/d",
            buffer_batches=slots,
            **spec,
        )
        self.engine.hello(KEEPER, Hello(1, "trainer", "", 1, "s", made.fingerprint, encode_spec(made), True), 0.0)
        self.engine.program_arrived(KEEPER)
        self.engine.keep(KEEPER, (0, 0), follows_progress=True)
        self.stream = self.engine.stream_of(KEEPER)
        self.work()

    def work(self):
        """Until nothing is left to do."""
        while commands := self.engine.take_commands():
            for command in commands:
                kind = type(command).__name__
                if kind == "StartStream":
                    self.engine.host_ready(command.host)
                elif kind == "StartWorker":
                    self.engine.worker_ready(command.worker, 0.0)
                elif kind == "Assign":
                    self._answer(command.worker, command.message)
                elif kind == "CreateRing":
                    number = self.stream.number
                    self.engine.ring_created(number, self.slots, self.slots, BATCH_BYTES)
                    self.engine.ring_reserved(number, self.slots)
                elif isinstance(command, WriteSlot):
                    self._write(command.slot, command.record)
                elif isinstance(command, FreeSlot):
                    self._free(command.slot, command.generation)

    def _answer(self, worker, message: Fill):
        for task, kind, epoch, step, first, end, slot, *_ in message.tasks:
            size = BATCH_BYTES * (self.slots // 2 if (epoch, step) in self.wide else 1)
            if kind == MEASURE:
                answer = Measured(task, BATCH_BYTES)
            elif size > BATCH_BYTES * self.records[slot].span:
                answer = Unfit(task, size, "too large")
            else:
                answer = Filled(((task, size, 1000, end - first),))
            self.engine.worker_message(worker, answer, 0.0)

    def _write(self, slot, record):
        self.records[slot] = record
        if record.state == SLOT_READY:
            self.files[record.epoch, record.step] = (slot, record.generation)
            assert len(self.files) <= self.slots, "more files than there may be"

    def _free(self, slot, generation):
        record = self.records[slot]
        assert record.generation == generation
        self.files.pop((record.epoch, record.step), None)

    def goes_to(self, *position):
        self.engine.progress(KEEPER, position)
        self.work()
        return sorted(self.files)


def run(epoch, first, count):
    """So many positions from there on."""
    return [(epoch + (first + each) // STEPS, (first + each) % STEPS) for each in range(count)]


def test_filled_before_anybody_says_anything():
    kept = Kept()
    assert sorted(kept.files) == run(0, 0, 8)
    assert is_warm(kept.stream)


def test_what_was_made_ahead_gives_way_to_what_turns_out_to_be_large():
    kept = Kept(wide={(0, 4), (0, 5)})
    assert kept.goes_to(0, 4) == [(0, 4), (0, 5)]
    assert kept.goes_to(0, 5) == run(0, 5, 5)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, STEPS - 1)), max_size=12))
@tries(60)
def test_wherever_it_goes_what_follows_is_there_and_nothing_else(positions):
    kept = Kept()
    for epoch, step in positions:
        assert kept.goes_to(epoch, step) == run(epoch, step, 8)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, STEPS - 1)), max_size=12))
@tries(60)
def test_with_watermarks_no_fewer_than_the_low_one_wait_and_the_next_is_always_there(positions):
    kept = Kept(slots=12, low_watermark=4, high_watermark=8)
    assert sorted(kept.files) == run(0, 0, 8)
    for epoch, step in positions:
        found = kept.goes_to(epoch, step)
        assert found == run(epoch, step, len(found))
        assert 4 <= len(found) <= 8


def test_a_file_that_is_missing_is_made_again():
    kept = Kept(slots=12, low_watermark=4, high_watermark=8)
    slot, generation = kept.files.pop((0, 2))
    kept.engine.batch_missing(kept.stream.number, slot, generation + 1)
    kept.work()
    assert (0, 2) not in kept.files, "that is another batch by now"
    kept.engine.batch_missing(kept.stream.number, slot, generation)
    kept.work()
    assert sorted(kept.files) == run(0, 0, 8)


def test_a_plan_that_ends_is_filled_to_its_end():
    kept = Kept(epochs=2)
    assert kept.goes_to(1, 17) == run(1, 17, 3)
    assert is_warm(kept.stream)
    assert kept.goes_to(2, 0) == []
    assert kept.goes_to(1, 18) == run(1, 18, 2)


def test_what_is_passed_counts_as_consumed():
    kept = Kept()
    kept.goes_to(0, 5)
    kept.goes_to(1, 2)
    kept.goes_to(0, 0)
    assert kept.stream.counters.consumed == STEPS + 2


@pytest.mark.parametrize(
    ("position", "found"),
    [
        ((0, 0), (0, 0)),
        ((1, STEPS), (2, 0)),
        ((2, 0), (2, 0)),
        ((1, STEPS + 1), f"it says batch {STEPS + 1}; allowed: 0 to {STEPS}, an epoch's length"),
        ((2, 1), "it says epoch 2, batch 1; allowed: up to 2, 0, where the plan ends"),
    ],
)
def test_positions_of_the_plan(position, found):
    assert planned(Kept(epochs=2).stream, position) == found


def test_epochs_beyond_the_plan_have_no_steps():
    lengths = FiniteEpochs(STEPS, 2)
    assert [lengths.steps(epoch) for epoch in range(4)] == [STEPS, STEPS, 0, 0]
    assert lengths.is_end((2, 0))
