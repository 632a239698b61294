"""The answers about pipelines, held against the same pipelines with what was asked about."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.diagnosis.advice import Advice, Answer, advise
from tests.unit.diagnosis.pipelines import Pipeline


def always(seconds: float):
    return lambda step: seconds


def advised(pipeline: Pipeline, workers: int | None = None, **changes: object) -> Advice:
    snapshot = {"workers": {"cpus": pipeline.cpus, "limit": 0}, "load": None}
    return advise(pipeline.run() | changes, snapshot, workers)


def answer(advice: Advice, what: str, value: int) -> Answer:
    return next(each for each in advice.answers if (each.what, each.value) == (what, value))


def truth(pipeline: Pipeline, **changes: object) -> float:
    """Batches a second that the trainer gets."""
    return dataclasses.replace(pipeline, **changes).run()["recent"]["consumed_batches_per_s"]


@pytest.mark.parametrize("step_s", [0.001, 0.02, 0.07])
@pytest.mark.parametrize("task_s", [0.05, 0.3])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_what_so_many_workers_bring_lies_in_the_range(workers, task_s, step_s):
    pipeline = Pipeline(2, 200, always(task_s), always(step_s), computing=0.1)
    found = answer(advised(pipeline, workers), "workers", workers)
    assert found.low * 0.97 <= truth(pipeline, workers=workers) <= found.high * 1.03
    if workers > 2:
        assert found.batches_per_s == pytest.approx(truth(pipeline, workers=workers), rel=0.1)


def test_what_there_is_is_what_was_measured():
    pipeline = Pipeline(2, 16, always(0.1), always(0.03))
    found = answer(advised(pipeline), "workers", 2)
    assert found.is_now
    assert found.batches_per_s == pytest.approx(20, rel=0.03)
    assert found.low < found.batches_per_s < found.high


def test_workers_that_compute_make_no_more_than_the_cpus():
    pipeline = Pipeline(2, 16, always(0.1), always(0.001), cpus=2, computing=1.0)
    found = answer(advised(pipeline, 8), "workers", 8)
    assert found.high == pytest.approx(20, rel=0.05)
    assert answer(advised(pipeline), "machines", 2).high == pytest.approx(40, rel=0.05)


def test_where_more_workers_did_not_help_more_are_not_promised():
    pipeline = Pipeline(8, 16, always(0.4), always(0.001), computing=0.1)
    paces = [{"workers": 2, "batches_per_s": 20.0, "over_s": 9.0}, {"workers": 8, "batches_per_s": 20.0, "over_s": 9.0}]
    advice = advised(pipeline, 32, paces=paces)
    assert advice.limit == "does not scale"
    assert answer(advice, "workers", 32).high <= 1.06 * 20


def test_nobody_is_promised_more_than_the_trainer_takes():
    pipeline = Pipeline(2, 200, always(0.1), always(0.03), computing=0.1)
    advice = advised(pipeline, 64)
    assert advice.demand == pytest.approx(1 / 0.03, rel=0.02)
    assert max(each.high for each in advice.answers) <= advice.demand * 1.001


def test_a_buffer_is_answered_about_where_one_is_short():
    small = Pipeline(2, 4, always(0.05), lambda step: 1.0 if step % 20 == 19 else 0.01)
    (found,) = [each for each in advised(small).answers if each.what == "buffer"]
    assert found.low * 0.97 <= truth(small, slots=found.value) <= found.high * 1.03


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"recent": {}}, "measuring"), ({"consumers": []}, "nobody consumes it"), ({"paused": True}, "paused")],
)
def test_where_there_is_nothing_to_say_it_is_said_why(changes, why):
    advice = advised(Pipeline(2, 16, always(0.1), always(0.03)), **changes)
    assert why in advice.why_none
    assert not advice.answers
