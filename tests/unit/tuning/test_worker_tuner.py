"""The number of workers, tuned on simulated streams whose best number is known."""

from __future__ import annotations

import itertools

import pytest

from prefetchd.tuning.throughput import BatchCost, throughput, useful_workers, workers_for
from prefetchd.tuning.worker_tuner import KEPT_S, Room, Sums, WorkerTuner
from tests.unit.tuning.simulated import Pipeline, Sample, Tuned, made_per_s

DATASETS = {
    "it waits": lambda random: Sample(waits_s=0.02 * random.uniform(0.9, 1.1), cpu_s=0.001),
    "it waits and computes": lambda random: Sample(waits_s=0.03 * random.uniform(0.8, 1.2), cpu_s=0.005),
    "half of it waits": lambda random: Sample(waits_s=0.01 * random.uniform(0.8, 1.2), cpu_s=0.01),
    "it computes": lambda random: Sample(cpu_s=0.01 * random.uniform(0.5, 1.5)),
    "one of a hundred takes long": lambda random: Sample(1.0 if random.random() < 0.01 else 0.001, cpu_s=0.001),
    "one lock for all": lambda random: Sample(locked_s=0.02, cpu_s=0.0005),
}
SWEEP = (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("dataset", DATASETS)
def test_after_15_s_it_is_as_good_as_the_best_number(dataset):
    best = 0.0
    for workers in SWEEP:
        pipeline = Pipeline(DATASETS[dataset])
        pipeline.have(workers)
        pipeline.run(3)
        best = max(best, made_per_s(pipeline, 12))
    tuned = Tuned(Pipeline(DATASETS[dataset]))
    tuned.run(15)
    assert tuned.made_per_s(12) >= 0.95 * best


@pytest.mark.parametrize("dataset", DATASETS)
def test_once_settled_nothing_changes(dataset):
    tuned = Tuned(Pipeline(DATASETS[dataset]))
    tuned.run(60)
    # Samples that take long are not in every second.
    assert tuned.changes_after(25) == []
    assert len(tuned.changes) <= 6


def test_what_does_not_help_is_tried_less_and_less():
    tuned = Tuned(Pipeline(DATASETS["one lock for all"]))
    tuned.run(600)
    assert tuned.tuner.workers == 2
    tried = [at_s for at_s, change in tuned.changes if change.workers > change.before]
    assert 2 <= len(tried) <= 4
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == sorted(pauses)


def test_as_many_as_the_trainer_s_pace_takes():
    tuned = Tuned(Pipeline(DATASETS["it waits"], lambda now_s: 0.02))
    tuned.run(15)
    # 8 samples of 21 ms in 20 ms are 8.4 workers; half as many again are more than enough.
    assert 9 <= tuned.tuner.workers <= 13
    assert tuned.made_per_s(10) >= 0.97 / 0.02


def test_a_trainer_that_does_not_wait_changes_nothing():
    tuned = Tuned(Pipeline(DATASETS["it waits"], lambda now_s: 0.1))
    tuned.run(30)
    assert tuned.changes == []


def test_what_is_not_needed_for_a_minute_is_given_back():
    tuned = Tuned(Pipeline(DATASETS["it waits"], lambda now_s: 0.02 if now_s < 20 else 0.2))
    tuned.run(20)
    before = tuned.tuner.workers
    tuned.run(KEPT_S - 10)
    assert tuned.tuner.workers == before
    tuned.run(30)
    assert tuned.tuner.workers == 1
    assert tuned.made_per_s(20) >= 0.98 / 0.2


def test_bursts_do_not_count_as_a_slow_trainer():
    """3 s of work, 3 s of pause: what is filled in the pause was needed."""
    tuned = Tuned(Pipeline(DATASETS["it waits"], lambda now_s: 0.02 if now_s % 6 < 3 else 3.0, ring=200))
    tuned.run(30)
    settled = tuned.changes_after(30)
    tuned.run(150)
    assert len(tuned.changes_after(30)) - len(settled) <= 2


def test_trying_costs_the_trainer_nothing():
    paces = []
    for most in (2, 64):
        tuned = Tuned(Pipeline(DATASETS["one lock for all"], lambda now_s: 0.1), most=most)
        paces.append(tuned.made_per_s(60))
    assert paces[1] >= 0.97 * paces[0]


def test_no_more_than_there_is_room_for():
    tuned = Tuned(Pipeline(DATASETS["it waits"]), most=5)
    tuned.run(15)
    assert tuned.tuner.workers == 5
    tuned.room = Room(2.0, 3, "memory is short")
    tuned.run(1)
    assert tuned.changes[-1][1].workers == 3
    assert tuned.changes[-1][1].why == "memory is short"
    tuned.room = Room(2.0, 0, "memory is short")
    tuned.run(1)
    assert tuned.tuner.workers == 1


def test_before_more_come_the_room_is_measured_anew_and_not_otherwise():
    """Found in a cgroup: workers of 1 GiB had been looked at before they had it, and seven of them were killed."""
    tuned = Tuned(Pipeline(DATASETS["it waits"]))
    measured = []
    tuned.measure = lambda: measured.append(tuned.pipeline.now_s) or Room(2.0, 3, "memory is short")
    tuned.run(15)
    assert tuned.tuner.workers == 3
    before = len(measured)
    assert measured
    tuned.room = Room(2.0, 3, "memory is short")
    tuned.run(15)
    assert len(measured) == before


def test_other_samples_are_tried_anew():
    """What did not help once may help when samples have become other ones."""

    def draw(random):
        return DATASETS["one lock for all" if tuned.pipeline.now_s < 20 else "it waits and computes"](random)

    tuned = Tuned(Pipeline(draw))
    tuned.run(20)
    assert tuned.tuner.workers == 2
    tuned.run(15)
    assert tuned.tuner.workers > 12


def test_why_is_said_in_figures():
    tuned = Tuned(Pipeline(DATASETS["it waits and computes"]))
    tuned.run(4)
    assert tuned.changes[0][1].why.startswith("the trainer waited 100% of its time, and samples wait 8")


def test_nothing_is_decided_of_workers_that_are_not_there_yet():
    tuner, room = WorkerTuner(2, 8), Room(2.0, 64, "")
    for second in range(20):
        sums = Sums(100 * second, second, 2.0 * second, 0.1 * second, 0.0, 1.0 * second, 1.0 * second, 1.0 * second)
        assert tuner.observe(sums, 1, room, float(second)) is None


# --- the arithmetic ---


def test_throughput_is_bounded_by_workers_or_by_cpus():
    cost = BatchCost(task_s=0.1, cpu_s=0.02)
    assert throughput(2, cost, 4) == pytest.approx(20)
    assert throughput(100, cost, 4) == pytest.approx(200)
    assert throughput(1, BatchCost(0.0, 0.0), 1) == float("inf")


def test_workers_that_compute_are_as_many_as_the_cpus():
    assert useful_workers(BatchCost(0.1, 0.1), 4) == 4
    # Several threads of one worker.
    assert useful_workers(BatchCost(0.1, 0.4), 4) == 4


def test_workers_that_wait_are_as_many_more_as_they_wait_and_some():
    assert useful_workers(BatchCost(0.1, 0.05), 4) == pytest.approx(4 * 2 * 1.5)
    assert useful_workers(BatchCost(0.1, 0.0), 4) == float("inf")
    assert useful_workers(BatchCost(0.0, 0.0), 4) == 1


def test_workers_for_a_demand_are_busy_but_not_quite():
    assert workers_for(9, BatchCost(0.5, 0.1)) == pytest.approx(5)
