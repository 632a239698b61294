"""A stream whose consumer is known by a progress file alone: it never says that it waits, and is never kept waiting."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import example, given

from prefetchd.wire.messages import Hello
from prefetchd.wire.segment_layout import SLOT_READY
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from tests.budgets import tries
from tests.property.world import SLOT_BYTES, World

KEEPER = -2
STEPS = 10
LAST = (4, 0)


class Followed:
    """One stream of batches that take `spans` slots each, over and over, in `slots` slots."""

    def __init__(self, workers: int, slots: int, spans: list[int], low: int, high: int) -> None:
        self.world = World(workers, slots, by_rows=False)
        self.world.most_slots = slots
        self.spec = StreamSpec("0" * 32, 0, "sequential", 4 * STEPS, 4, low_watermark=low, high_watermark=high)
        for epoch in range(LAST[0] + slots):
            for step in range(STEPS):
                span = min(slots // 2, spans[step % len(spans)])
                self.world.sizes[epoch, step] = SLOT_BYTES * span
        engine = self.world.engine
        engine.hello(KEEPER, Hello(1, "trainer", "", 1, "s", self.spec.fingerprint, encode_spec(self.spec), True), 0.0)
        engine.program_arrived(KEEPER)
        engine.keep(KEEPER, (0, 0), follows_progress=True)
        self.kills = 2
        # Nobody is offered anything: who reads the files asks for nothing.
        engine.publications = lambda session: []
        self.world.run()

    @property
    def busy(self) -> bool:
        return bool(self.world.pending) or any(worker.tasks for worker in self.world.workers.values())

    def go_on(self, dice: random.Random) -> None:
        """Something happens of what may."""
        works = any(worker.tasks for worker in self.world.workers.values())
        if works and self.kills and dice.random() < 0.02:
            self.kills -= 1
            self.world.kill_worker(dice.randrange(10))
        elif self.world.pending and (not works or dice.random() < 0.3):
            self.world.deliver(dice.randrange(10))
        elif works:
            self.world.work(dice.randrange(10), dice.choice([1, 1, 2]))

    def has(self, position) -> bool:
        return any(
            record.state == SLOT_READY and (record.epoch, record.step) == position
            for records in self.world.records.values()
            for record in records.values()
        )

    def told(self, position) -> None:
        self.world.engine.progress(KEEPER, position)
        self.world.run()


@given(
    workers=st.integers(1, 3),
    slots=st.integers(8, 30),
    spans=st.lists(st.integers(1, 12), min_size=1, max_size=STEPS),
    # As a configuration may have them: both, the low one less, or neither.
    watermarks=st.just((0, 0))
    | st.tuples(st.integers(1, 8), st.integers(1, 22)).map(lambda each: (each[0], sum(each))),
    jumps=st.dictionaries(st.integers(0, 60), st.tuples(st.integers(0, 3), st.integers(0, STEPS - 1)), max_size=3),
    seed=st.integers(0, 1 << 32),
)
# A batch gave way to an earlier one, and a later one that waited for room kept it from being made again.
@example(workers=2, slots=24, spans=list(range(1, 11)), watermarks=(6, 100), jumps={}, seed=4)
@tries(200)
def test_the_next_batch_always_comes(workers, slots, spans, watermarks, jumps, seed):
    dice = random.Random(seed)
    followed = Followed(workers, slots, spans, *watermarks)
    position = (0, 0)
    for taken in range(70):
        while not followed.has(position):
            if not followed.busy:
                followed.world.now += 1
                followed.world.tick()
            assert followed.busy or followed.has(position), f"nothing is done, and {position} is not there"
            followed.go_on(dice)
        while followed.busy and dice.random() < 0.5:
            followed.go_on(dice)
        # Whoever holds a batch says that it is there, and takes the next one.
        followed.told(position)
        epoch, step = position
        position = jumps.get(taken, (epoch, step + 1) if step + 1 < STEPS else (epoch + 1, 0))
        if taken in jumps:
            followed.told(position)
        if position >= LAST:
            return
