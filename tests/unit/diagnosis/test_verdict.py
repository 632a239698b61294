"""The verdict on pipelines whose bottleneck is known, and what becomes of them when its advice is taken."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.diagnosis.verdict import Verdict, judge
from prefetchd.tuning.worker_tuner import STALLED_SHARE
from tests.unit.diagnosis.pipelines import Pipeline


def verdict(
    pipeline: Pipeline,
    others_busy: float = 0.0,
    bound: int = 0,
    load: dict[str, float] | None = None,
    **changes: object,
) -> Verdict:
    return judge(pipeline.run() | changes, snapshot(pipeline.cpus, bound, load), others_busy)


def snapshot(cpus: int, bound: int = 0, load: dict[str, float] | None = None) -> dict[str, object]:
    return {"workers": {"cpus": cpus, "limit": bound}, "load": load}


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


def test_where_the_daemon_turns_it_itself_that_is_said():
    workers = "The daemon tunes their number itself"
    buffer = "The daemon tunes the buffer itself"
    assert workers in verdict(SLOW_DATASET, tuned=True, buffer_tuned=True).text
    assert workers not in verdict(SLOW_DATASET, tuned=False, buffer_tuned=True).text
    assert buffer in verdict(SMALL_BUFFER, tuned=True, buffer_tuned=True).text
    assert buffer not in verdict(SMALL_BUFFER, tuned=True, buffer_tuned=False).text
    assert "itself" not in verdict(SLOW_TRAINER, tuned=True, buffer_tuned=True).text


SHORT_SAMPLES = Pipeline(2, 16, always(0.1), always(0.03), computing=1.0, cpus=2)


def test_who_makes_short_samples_one_by_one_is_told_how_to_make_them_at_once():
    def said(pipeline: Pipeline, samples_per_s: float = 1e6, **changes: object) -> str:
        measured = pipeline.run()
        measured["recent"]["produced_samples_per_s"] = samples_per_s
        return judge(measured | changes, snapshot(pipeline.cpus), 0.0).text

    assert "Its samples take 2 us each" in said(SHORT_SAMPLES)
    assert "__getitems__" in said(SHORT_SAMPLES)
    assert "__getitems__" not in said(SHORT_SAMPLES, samples_per_s=1000), "they are not short"
    assert "__getitems__" not in said(SHORT_SAMPLES, one_by_one=False)
    assert "__getitems__" not in said(dataclasses.replace(SHORT_SAMPLES, computing=0.2)), "they wait"
    assert "__getitems__" not in said(SLOW_TRAINER)


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
    assert f"buffer={before.buffer_batches_wanted} would bridge its bursts" in before.text
    wider = verdict(dataclasses.replace(SMALL_BUFFER, slots=before.buffer_batches_wanted))
    assert wider.stalled_share < STALLED_SHARE
    assert wider.demand_batches_per_s == pytest.approx(before.expected_batches_per_s, rel=0.1)
    assert before.buffer_batches_wanted < 40, "twenty are taken at once"


def test_a_ring_that_never_was_full_and_then_empty_may_be_larger():
    recent = SMALL_BUFFER.run()["recent"] | {"bursts": 0}
    found = verdict(SMALL_BUFFER, recent=recent)
    assert (found.limit, found.buffer_batches_wanted, found.expected_batches_per_s) == ("buffer", 8, None)


def test_what_other_machines_make_is_not_taken_for_the_work_of_those_here():
    """They make two batches for each one of these."""
    alone, recent = verdict(SLOW_DATASET), SLOW_DATASET.run()["recent"]
    here = recent["produced_batches_per_s"]
    changes = {
        "produced_batches_per_s": 3 * here,
        "elsewhere_batches_per_s": 2 * here,
        "produced_samples_per_s": 3 * recent["produced_samples_per_s"],
    }
    found = verdict(SLOW_DATASET, recent=recent | changes)
    assert found.supply_batches_per_s == pytest.approx(alone.supply_batches_per_s + 2 * here)
    # A worker makes 10 a second, at 0.9 of its time; the trainer takes 33, of which 40 would come from elsewhere.
    assert found.workers_wanted == 3, "the least that is more"
    assert alone.workers_wanted == 4


def test_more_workers_are_not_praised_where_there_are_no_cpus_for_them():
    found = verdict(Pipeline(2, 16, always(0.1), always(0.02), cpus=2, computing=1.0))
    assert found.limit == "cpu"
    assert "2 CPUs can be used" in found.text


def test_nor_where_the_trainer_always_waits():
    found = verdict(Pipeline(2, 16, always(0.1), always(0.001), cpus=2, computing=1.0))
    assert found.stalled_share > 0.95
    assert (found.limit, found.workers_wanted) == ("cpu", None)


def test_workers_that_wait_may_be_more_than_the_cpus():
    pipeline = Pipeline(2, 16, always(0.1), always(0.02), cpus=2, computing=0.1)
    found = verdict(pipeline)
    assert (found.limit, found.workers_wanted) == ("waiting", 6)
    assert "whose tasks wait 90% of the time; 6 workers would keep up" in found.text
    applied = verdict(dataclasses.replace(pipeline, workers=6))
    assert applied.limit == "trainer"
    assert applied.demand_batches_per_s == pytest.approx(found.expected_batches_per_s, rel=0.2)


def test_twice_as_many_of_them_make_twice_as_much_where_the_trainer_always_waits():
    pipeline = Pipeline(2, 16, always(0.1), always(0.001), cpus=2, computing=0.1)
    found = verdict(pipeline)
    assert (found.limit, found.workers_wanted) == ("waiting", 4)
    more = verdict(dataclasses.replace(pipeline, workers=4))
    assert more.supply_batches_per_s == pytest.approx(found.expected_batches_per_s, rel=0.05)


def test_of_workers_that_wait_for_a_disk_no_more_than_twice_as_many_are_tried():
    found = verdict(Pipeline(2, 16, always(0.2), always(0.01), cpus=2, computing=0.1, on_disk=0.8))
    assert (found.limit, found.workers_wanted, found.expected_batches_per_s) == ("waiting", 4, None)
    assert "for the disk" in found.text


def test_a_slow_collate_fn_is_not_the_datasets_fault():
    found = verdict(Pipeline(2, 16, always(0.1), always(0.04), collating=0.8))
    assert found.limit == "collate"
    assert "collate_fn in 2 workers, which takes 80% of their time; 3 workers would keep up" in found.text


def paces(*found: tuple[int, float, float]) -> list[dict[str, float]]:
    return [{"workers": workers, "batches_per_s": rate, "over_s": over_s} for workers, rate, over_s in found]


ONE_LOCK = Pipeline(4, 16, always(0.4), always(0.02), cpus=2, computing=0.05)


@pytest.mark.parametrize("before", [2, 8], ids=["fewer before", "more before"])
def test_workers_that_wait_for_each_other_are_found_once_their_number_has_changed(before):
    found = verdict(ONE_LOCK, paces=paces((before, 10.1, 8.0), (4, 10.0, 8.0)))
    assert (found.limit, found.workers_wanted) == ("does not scale", None)
    few, many = sorted([before, 4])
    assert f"{few} workers made 10 batches/s and {many} make 10" in found.text


@pytest.mark.parametrize(
    "known",
    [
        paces((4, 10.0, 8.0)),
        paces((2, 5.2, 8.0), (4, 10.0, 8.0)),
        paces((2, 10.1, 1.0), (4, 10.0, 8.0)),
        paces((3, 10.1, 8.0), (4, 10.0, 8.0)),
    ],
    ids=["never changed", "scaled", "too short", "hardly changed"],
)
def test_and_not_before_that_is_known(known):
    assert verdict(ONE_LOCK, paces=known).limit == "waiting"


def load(trainers: float = 0.0, others: float = 0.0) -> dict[str, float]:
    own = 2.0 - trainers - others
    return {"over_s": 10.0, "cpus": 2.0, "busy": 2.0, "own": own, "trainers": trainers, "others": others}


IN_LINE = Pipeline(2, 16, always(0.2), always(0.03), cpus=2, cpu_wait=0.5, computing=1.0)


def test_a_foreign_load_is_not_the_trainers_fault():
    found = verdict(IN_LINE, load=load(others=1.2))
    assert found.limit == "foreign load"
    assert "use 1.2" in found.text
    alone = verdict(dataclasses.replace(IN_LINE, task_s=always(0.1), cpu_wait=0.0), load=load())
    assert alone.supply_batches_per_s == pytest.approx(found.expected_batches_per_s, rel=0.2)


def test_who_has_the_cpus_is_named():
    threads = verdict(IN_LINE, load=load(trainers=1.2))
    assert (threads.limit, "Fewer threads in the trainer" in threads.text) == ("cpu", True)
    own = verdict(IN_LINE, load=load())
    assert (own.limit, "Fewer threads" in own.text) == ("cpu", False)


def test_a_stream_that_is_next_to_idle_is_not_in_line():
    """Its workers stood in line longer than they had tasks: 213 %, told as 100 %."""
    pipeline = Pipeline(2, 16, always(0.1), always(0.06))
    recent = pipeline.run()["recent"] | {"fill_s": 3.0, "cpu_s": 1.5, "cpu_wait_s": 6.4, "stalled_s": 20.0}
    found = verdict(pipeline, others_busy=2.0, bound=2, recent=recent)
    assert found.limit == "other streams"


def test_other_streams_take_no_worker_where_there_is_no_bound_for_all():
    found = verdict(SMALL_BUFFER, others_busy=8.0)
    assert found.limit == "buffer"


def test_workers_that_import_are_starting():
    pipeline = Pipeline(2, 16, always(0.01), always(0.05))
    recent = pipeline.run()["recent"] | {"starting_s": 4.5, "stalled_s": 5.0, "full_share": 0.0}
    found = verdict(pipeline, recent=recent)
    assert (found.limit, found.workers_wanted) == ("starting", None)
    assert "starting for 4.5 of the last 60 s" in found.text


FOLLOWED = {"consumers": [], "progress": {"file": "/mnt/ram/progress"}}


def test_who_is_followed_by_a_file_is_judged_by_where_it_stands():
    found = verdict(SLOW_TRAINER, **FOLLOWED)
    assert found.limit == "trainer"
    assert found.text.endswith("its waits cannot be seen through a progress file")
    found = verdict(SLOW_DATASET, **FOLLOWED)
    assert (found.limit, found.workers_wanted) == ("dataset", 4)
    assert found.text.startswith("late: 40% of the time the batch where its progress file stands was not ready;")


def test_workers_that_are_busy_with_other_streams_are_named():
    # Two of three workers are kept by others: of three this one gets one.
    found = verdict(Pipeline(1, 16, always(0.1), always(0.06)), others_busy=2.0, bound=3, workers_limit=3)
    assert found.limit == "other streams"
    assert found.workers_wanted == 4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"failure": "gone"}, "it has failed"),
        ({"consumers": []}, "nobody consumes it"),
        ({"consumers": [{"pid": 1, "departed": True}]}, "nobody consumes it"),
        (
            {"consumers": [], "absent_consumers": [7, 9]},
            "pid 7, 9 has not connected to this daemon yet: it takes batches that an earlier daemon offered it",
        ),
        (
            {"consumers": [], "progress": {"file": "/progress"}, "consumed_batches": 0},
            "its progress file has not told yet that anybody goes on",
        ),
        ({"recent": None}, "measuring"),
        (
            {"recent": None, "consumers": [{"pid": 1, "departed": False, "waiting_s": 12.4}]},
            "the trainer has waited 12 s for a batch",
        ),
        (
            {"recent": None, "consumed_batches": 0, "ring": {"ready": 8, "filling": 0}},
            "its ring is full, and nobody has taken a batch yet",
        ),
        ({"store_fault": "/mnt/ram: No space left on device"}, "its batches cannot be stored"),
        ({"paused": True}, "paused: nothing is filled until `prefetchd resume`"),
    ],
)
def test_what_cannot_be_judged_is_not(changes, text):
    assert verdict(SLOW_DATASET, **changes) == Verdict("none", text)


def test_a_trainer_that_asks_for_nothing_is_not_waited_for():
    stream = SLOW_TRAINER.run()
    stream["recent"] |= {"consumed_batches_per_s": 0.0, "stalled_s": 0.0}
    assert judge(stream, snapshot(2)).text == "the trainer does not ask for batches"


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


@pytest.mark.parametrize(("step_s", "task_s"), [(0.2, 0.1), (0.09, 0.2), (0.05, 0.2), (0.02, 0.2)])
def test_perfect_speedup_is_what_a_trainer_of_known_pace_gains(step_s, task_s):
    slow = verdict(Pipeline(2, 16, always(task_s), always(step_s)))
    # A batch comes each task_s / 2, and the trainer alone takes step_s for one.
    assert slow.perfect_speedup == pytest.approx(max(1.0, task_s / 2 / step_s), rel=0.02)
    assert f"{slow.perfect_speedup:.2f}x as fast" in slow.answer or slow.perfect_speedup < 1.001


def test_answer_names_the_share_and_the_speedup():
    found = verdict(Pipeline(2, 16, always(0.2), always(0.089)))
    assert (
        found.answer == "the trainer waited 11% of the last minute; with data always ready it would run 1.12x as fast"
    )


def test_answer_of_a_trainer_that_never_waits_promises_nothing():
    found = verdict(SLOW_TRAINER)
    assert found.perfect_speedup == pytest.approx(1.0, abs=0.001)
    assert "faster loading would not make training faster" in found.answer


def test_answer_of_a_trainer_that_only_waits_is_a_lower_bound():
    found = verdict(Pipeline(2, 16, always(0.5), always(0.001)))
    assert found.perfect_speedup == pytest.approx(20.0)
    assert "at least 20.00x" in found.answer


def test_answer_is_empty_where_nothing_is_judged():
    found = verdict(SLOW_DATASET, paused=True)
    assert (found.limit, found.perfect_speedup, found.answer) == ("none", None, "")
