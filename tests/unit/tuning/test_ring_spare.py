"""What a ring could do without, on simulated streams: what it keeps, what it gives back, and when."""

from __future__ import annotations

import pytest

from tests.unit.tuning.simulated import Pipeline, TunedRing
from tests.unit.tuning.test_ring_tuner import seldom, sleeping


def test_what_was_never_needed_for_a_minute_is_to_spare():
    tuned = TunedRing(Pipeline(sleeping, lambda now_s: 0.2, ring=64))
    tuned.run(30)
    assert tuned.tuner.spare_batches == 0, "half a minute says too little"
    tuned.run(40)
    assert 55 <= tuned.tuner.spare_batches < 64
    tuned.execute(tuned.tuner.give_up(40, "another stream needs it"))
    assert tuned.pipeline.ring == 24
    assert tuned.tuner.spare_batches == 0
    assert tuned.stalled(70) == 0.0


def test_what_bursts_need_is_not_to_spare():
    tuned = TunedRing(Pipeline(sleeping, seldom, ring=180))
    tuned.run(80)
    spare = tuned.tuner.spare_batches
    assert 20 <= spare <= 110
    tuned.execute(tuned.tuner.give_up(spare, "another stream needs it"))
    assert tuned.stalled(60) < 0.01


def test_a_ring_whose_trainer_waits_has_nothing_to_spare():
    tuned = TunedRing(Pipeline(sleeping, lambda now_s: 0.0, ring=64))
    tuned.run(120)
    assert tuned.tuner.spare_batches == 0


def batch_every(step_s: float):
    return lambda now_s: step_s


def test_what_is_not_needed_for_a_minute_is_given_back_but_for_ten_seconds():
    tuned = TunedRing(Pipeline(sleeping, batch_every(0.2), ring=200))
    tuned.run(55)
    assert tuned.changes == []
    # In the first minute it was filled, which looks as if that much had been needed.
    tuned.run(75)
    assert tuned.pipeline.ring == pytest.approx(50, abs=1)
    assert tuned.changes[-1][1].why == f"{tuned.pipeline.ring} were enough in the last 60 s"
    assert len(tuned.changes) == 2
    assert tuned.stalled(180) == 0.0
    assert len(tuned.changes) == 2


def test_a_ring_that_is_hardly_too_deep_stays():
    tuned = TunedRing(Pipeline(sleeping, batch_every(0.2), ring=60))
    tuned.run(90)
    assert tuned.changes == []


def test_each_worker_has_room_for_a_batch():
    tuned = TunedRing(Pipeline(sleeping, batch_every(2.0), ring=200), workers=16)
    tuned.run(90)
    assert tuned.pipeline.ring == 17


def test_no_fewer_than_the_ring_must_have():
    tuned = TunedRing(Pipeline(sleeping, batch_every(2.0), ring=200), least=40)
    tuned.run(200)
    assert tuned.pipeline.ring == 40
    assert len(tuned.changes) == 2


def test_a_trainer_that_does_something_else_gives_nothing_back():
    tuned = TunedRing(Pipeline(sleeping, lambda now_s: 0.2 if now_s < 40 else 1000.0, ring=200))
    tuned.run(300)
    assert tuned.changes == []
    assert tuned.tuner.spare_batches > 150, "who needs it may have it"


def test_where_trainers_wait_for_what_was_given_back_that_is_done_less_and_less():
    """Most of the time it takes five batches a second, but a hundred at once every 75 s."""
    tuned = TunedRing(Pipeline(sleeping, lambda now_s: 0.01 if now_s % 75 < 1.0 else 0.2, ring=200))
    tuned.run(900)
    given = [at_s for at_s, change in tuned.changes if "were enough" in change.why]
    assert 1 <= len(given) <= 3
    assert tuned.stalled(150) < 0.02
