"""The verdict on pipelines whose bottleneck is known, and what becomes of them when its advice is taken."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.cli.verdict import STALLED_SHARE, Verdict, judge
from tests.unit.cli.pipelines import Pipeline


def verdict(pipeline: Pipeline, others_fill_s: float = 0.0, bound: int = 0, **changes: object) -> Verdict:
    return judge(pipeline.run() | changes, {"cpus": pipeline.cpus, "limit": bound}, others_fill_s)


def always(seconds: float):
    return lambda step: seconds


def now_and_then(usual_s: float, seldom_s: float, every: int):
    return lambda step: seldom_s if step % every == every - 1 else usual_s


SLOW_DATASET = Pipeline(2, 16, always(0.1), always(0.03))
SLOW_TRAINER = Pipeline(2, 16, always(0.1), always(0.2))
SMALL_BUFFER = Pipeline(2, 4, always(0.05), now_and_then(0.01, 1.0, 20))
ONE_IN_A_HUNDRED = Pipeline(2, 8, now_and_then(0.02, 2.0, 100), always(0.05))
SLOW_DAEMON = Pipeline(2, 16, always(0.02), always(0.005), handover_s=0.02)
STARVED = Pipeline(4, 16, always(0.2), always(0.03), cpus=2, cpu_wait=0.5, computing=1.0)


@pytest.mark.parametrize(
    ("pipeline", "limit"),
    [
        (SLOW_DATASET, "dataset"),
        (SLOW_TRAINER, "trainer"),
        (SMALL_BUFFER, "buffer"),
        (ONE_IN_A_HUNDRED, "slow samples"),
        (STARVED, "cpu"),
        (SLOW_DAEMON, "daemon"),
    ],
    ids=["slow dataset", "slow trainer", "small buffer", "one slow sample in a hundred", "starved CPU", "slow daemon"],
)
def test_the_limit_is_found(pipeline, limit):
    found = verdict(pipeline)
    assert found.limit == limit, found.text


@pytest.mark.parametrize("task_s", [0.05, 0.1, 0.37])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("step_s", [0.01, 0.03])
def test_so_many_workers_as_it_says_keep_up_and_fewer_do_not(task_s, workers, step_s):
    pipeline = Pipeline(workers, 200, always(task_s), always(step_s))
    found = verdict(pipeline)
    if found.workers_wanted is None:
        assert found.limit == "trainer" or found.stalled_share > 0.95
        return
    assert f"{found.workers_wanted} workers would keep up" in found.text
    enough = dataclasses.replace(pipeline, workers=found.workers_wanted)
    assert verdict(enough).limit == "trainer"
    fewer = max(1, int(0.85 * task_s / step_s))
    if fewer > workers:
        assert verdict(dataclasses.replace(pipeline, workers=fewer)).limit == "dataset"


def test_rates_are_those_of_the_pipeline():
    found = verdict(SLOW_DATASET)
    assert found.supply_batches_per_s == pytest.approx(20, rel=0.02)
    assert found.demand_batches_per_s == pytest.approx(1 / 0.03, rel=0.02)
    assert found.stalled_share == pytest.approx(0.4, abs=0.02)
    assert found.text == (
        "loader-bound: 40% of the trainer's time; the limit is the dataset in 2 workers; 4 workers would keep up"
    )


def test_a_trainer_that_is_the_limit_has_a_full_ring():
    found = verdict(SLOW_TRAINER)
    assert found.text.startswith("the trainer is the limit; the ring is full 9")


def test_the_buffer_that_it_names_bridges_slow_samples():
    found = verdict(ONE_IN_A_HUNDRED)
    assert f"buffer={found.buffer_batches_wanted}" in found.text
    wider = dataclasses.replace(ONE_IN_A_HUNDRED, slots=found.buffer_batches_wanted)
    assert verdict(wider).limit == "trainer"


def test_a_larger_buffer_helps_a_trainer_that_takes_batches_in_bursts():
    before = verdict(SMALL_BUFFER)
    assert "full" in before.text
    assert "empty" in before.text
    wider = verdict(dataclasses.replace(SMALL_BUFFER, slots=before.buffer_batches_wanted))
    assert wider.stalled_share < before.stalled_share
    assert verdict(dataclasses.replace(SMALL_BUFFER, slots=24)).stalled_share < STALLED_SHARE


def test_more_workers_are_not_praised_where_there_are_no_cpus_for_them():
    found = verdict(Pipeline(2, 16, always(0.1), always(0.02), cpus=2, computing=1.0))
    assert found.limit == "cpu"
    assert "2 CPUs can be used" in found.text


@pytest.mark.parametrize(("computing", "limit"), [(1.0, "cpu"), (0.1, "dataset")])
def test_nor_where_the_trainer_always_waits(computing, limit):
    found = verdict(Pipeline(2, 16, always(0.1), always(0.001), cpus=2, computing=computing))
    assert found.stalled_share > 0.95
    assert (found.limit, found.workers_wanted) == (limit, None)


def test_workers_that_wait_for_a_disk_may_be_more_than_the_cpus():
    found = verdict(Pipeline(2, 16, always(0.1), always(0.02), cpus=2, computing=0.1))
    assert (found.limit, found.workers_wanted) == ("dataset", 6)


def test_workers_that_are_busy_with_other_streams_are_named():
    # Two of three workers are kept by others: of three this one gets one.
    found = verdict(Pipeline(1, 16, always(0.1), always(0.06)), others_fill_s=2.0, workers_limit=3)
    assert found.limit == "other streams"
    assert found.workers_wanted == 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"failure": "gone"}, "it has failed"),
        ({"consumers": []}, "nobody consumes it"),
        ({"consumers": [{"pid": 1, "departed": True}]}, "nobody consumes it"),
        ({"recent": None}, "measuring"),
        (
            {"recent": None, "consumers": [{"pid": 1, "departed": False, "waiting_s": 12.4}]},
            "the trainer has waited 12 s for a batch",
        ),
        (
            {"recent": None, "consumed_batches": 0, "ring": {"ready": 8, "filling": 0}},
            "its ring is full, and nobody has taken a batch yet",
        ),
        ({"paused": True}, "paused: nothing is filled until `prefetchd resume`"),
    ],
)
def test_what_cannot_be_judged_is_not(changes, text):
    assert verdict(SLOW_DATASET, **changes) == Verdict("none", text)


def test_a_trainer_that_asks_for_nothing_is_not_waited_for():
    stream = SLOW_TRAINER.run()
    stream["recent"] |= {"consumed_batches_per_s": 0.0, "stalled_s": 0.0}
    assert judge(stream, {"cpus": 2, "limit": 0}).text == "the trainer does not ask for batches"


def test_who_has_bound_the_workers_is_named():
    found = verdict(Pipeline(2, 16, always(0.1), always(0.02)), bound=2, workers_asked=16)
    assert (found.limit, found.workers_wanted) == ("dataset", 6)
    assert found.text.endswith("6 workers would keep up, but `[daemon] workers` or --workers allow 2")
    assert "[daemon]" not in verdict(Pipeline(2, 16, always(0.1), always(0.02)), bound=2, workers_asked=2).text


def test_a_trainer_that_has_had_nothing_in_the_last_minute_waits():
    """Found as a division by zero."""
    pipeline = Pipeline(2, 16, always(0.1), always(0.02))
    nothing = {"consumed_batches_per_s": 0.0, "stalled_s": 9.0}
    found = verdict(pipeline, recent=pipeline.run()["recent"] | nothing)
    assert (found.limit, found.text) == ("none", "measuring")
