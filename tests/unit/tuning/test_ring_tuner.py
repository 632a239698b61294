"""The depth of the ring, tuned on simulated streams whose best depth is known."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.unit.tuning.simulated import Pipeline, Sample, TunedRing


def sleeping(random: random.Random) -> Sample:
    """100 samples a second from a worker: of two workers and batches of 8, 25 batches."""
    return Sample(waits_s=0.01 * random.uniform(0.9, 1.1))


def in_bursts(now_s: float) -> float:
    """50 batches a second for 3 s, then 3 s of something else: 25 a second on average."""
    return 0.02 if now_s % 6 < 3 else 3.0


def seldom(now_s: float) -> float:
    """The same, with a longer pause: workers idle."""
    return 0.02 if now_s % 9 < 3 else 6.0


def test_a_ring_grows_until_it_bridges_the_trainer_s_bursts():
    tuned = TunedRing(Pipeline(sleeping, seldom, ring=16))
    assert tuned.stalled(9) > 0.1
    tuned.run(60)
    assert tuned.stalled(36) < 0.02
    # 3 s of 50 batches/s, of which workers make half.
    assert 70 <= tuned.pipeline.ring <= 160


def test_once_it_is_enough_nothing_changes():
    tuned = TunedRing(Pipeline(sleeping, seldom, ring=16))
    tuned.run(90)
    count = len(tuned.changes)
    tuned.run(120)
    assert len(tuned.changes) == count <= 5


def test_no_more_than_there_is_room_for():
    tuned = TunedRing(Pipeline(sleeping, seldom, ring=16), most=40)
    tuned.run(120)
    assert tuned.pipeline.ring == 40
    assert len(tuned.changes) <= 2


def one_in_a_thousand_takes_long(random: random.Random) -> Sample:
    return Sample(waits_s=1.0 if random.random() < 0.002 else 0.005)


def test_a_ring_lasts_longer_than_the_slowest_sample():
    """Of two workers that make 50 batches a second but for a tail, the trainer takes 20."""
    tuned = TunedRing(Pipeline(one_in_a_thousand_takes_long, lambda now_s: 0.05, ring=4))
    before = tuned.stalled(30)
    tuned.run(60)
    assert before > 0.03
    assert tuned.stalled(60) < before / 2
    assert 20 <= tuned.pipeline.ring <= 120


@pytest.mark.parametrize("step_s", [0.0, 0.03, 0.1], ids=["always waits", "waits", "never waits"])
def test_where_a_deeper_ring_brings_nothing_it_stays_as_it_is(step_s):
    tuned = TunedRing(Pipeline(sleeping, lambda now_s: step_s, ring=16))
    tuned.run(120)
    assert tuned.changes == []


class Unhelped(Pipeline):
    """Workers that idle while there is room, and the trainer waits as before: a deeper ring brings nothing."""

    @property
    def ready_batches(self) -> float:
        return float(self.ring)

    @property
    def sums(self):
        found = super().sums
        tenth = found.consumer_s / 10
        return type(found)(
            batches=int(found.consumer_s * 10),
            consumed=int(found.consumer_s * 10),
            fill_s=tenth,
            consumer_s=found.consumer_s,
            stalled_s=tenth,
            full_s=tenth,
            bursts=int(found.consumer_s),
        )


def test_what_does_not_help_is_given_back_and_tried_less_and_less():
    tuned = TunedRing(Unhelped(sleeping, ring=16))
    tuned.run(600)
    deeper = [at_s for at_s, change in tuned.changes if change.batches > change.before]
    assert 2 <= len(deeper) <= 4
    assert all(change.batches == 16 for _, change in tuned.changes if change.batches < change.before)
    pauses = [after - before for before, after in itertools.pairwise(deeper)]
    assert pauses == sorted(pauses)
