"""How the demo has one loader's trainers run, told by trainers that are none."""

from __future__ import annotations

import io
import json

import pytest
from prefetchd_demo import comparison
from prefetchd_demo.comparison import measure, start_once
from prefetchd_demo.live import Live
from prefetchd_demo.trainer_messages import DATALOADER, ON_CPU, STAND_IN, Opened, Plan, Progress, Validated, encode_plan
from rich.console import Console

PLAN = Plan(DATALOADER, STAND_IN, 0.0, "data", 0, 4, 2, "", 3, True, False, "checkpoint.pt", "cache")


def progress(epoch, step, stalled_s):
    return Progress(epoch, step, 29, 0.5, 0.9, 800.0, stalled_s, 0.25, 104.0)


@pytest.fixture
def plans(monkeypatch):
    """The plans of the trainers that were started; all were started at 100 s, and are gone."""
    given, alive = [], []

    class Told:
        started_at_s = 100.0

        def __init__(self, plan, environment):
            given.append(plan)

        def __enter__(self):
            alive.append(self)
            assert len(alive) == 1, "one at a time"
            return self

        def __exit__(self, *_):
            alive.remove(self)

        def messages(self):
            yield Opened(2000, 10)
            if given[-1].resumes:
                yield progress(2, 29, 1.0)
                yield Validated(2, 0.3, 0.4, 0.95, 1.5)
            else:
                yield progress(2, 18, 7.0)

    monkeypatch.setattr(comparison, "TrainerProcess", Told)
    yield given
    assert not alive


def measured(plan):
    out = io.StringIO()
    with Live(Console(file=out, width=100)) as live:
        return measure(plan, {}, None, live), out.getvalue()


def test_one_is_killed_midway_and_another_goes_on_with_the_rest(plans):
    found, said = measured(PLAN)
    first, second = (json.loads(encode_plan(plan)) for plan in plans)
    assert (first["stops_midway"], first["resumes"]) == (True, False)
    assert second == first | {"stops_midway": False, "resumes": True}
    assert (found.first.stalled_s, found.second.stalled_s) == (7.0, 1.5)
    assert found.second.from_start_s == 4.0
    assert said == (
        "DataLoader\n"
        "  killed at step 18 of 29 of epoch 3, and started again\n"
        "  epoch 3  loss 0.30  validation loss 0.40  accuracy 95 %  stalled 1.5 s so far\n"
    )


def test_what_is_started_once_ends_with_its_first_progress(plans):
    with Live(Console(file=io.StringIO(), width=100)) as live:
        start_once(PLAN, {}, live)
    assert plans == [PLAN]


def test_on_the_cpu_the_other_trains_one_epoch_more(plans):
    _, said = measured(Plan(**json.loads(encode_plan(PLAN)) | {"step": ON_CPU, "stops_midway": False}))
    assert [(plan.epochs, plan.resumes) for plan in plans] == [(3, False), (4, True)]
    assert "the trainer is killed, and another one takes its place" in said
