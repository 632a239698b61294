"""What a stream and its processes can be at, where they begin, and what is known of a worker that is stuck."""

from __future__ import annotations

import dataclasses
import re

import pytest

from prefetchd.daemon.engine.stream.stages import Planner, Stage, Stuck, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState, Worker
from tests.unit.daemon.engine.stream.rooms import SPEC
from tests.unit.docs.draw import DOCS


def documented_stages(name: str) -> set[str]:
    """The stages that docs/status.md says `stage` may be, in the one row that has the stage `name`."""
    (row,) = re.findall(rf'^\| `stage` \| .*"{name}".*', (DOCS / "status.md").read_text("utf-8"), re.M)
    return set(re.findall(r'"([^"]+)"', row))


def test_the_stages_of_a_stream_are_those_that_status_shows():
    assert {stage.value for stage in Stage} == documented_stages("parked")


def test_a_worker_that_stops_is_not_shown_any_more():
    assert {stage.value for stage in WorkerStage} - {WorkerStage.STOPPING.value} == documented_stages("ready")


def test_a_stream_begins_without_its_program_and_a_worker_without_its_process():
    stream = StreamState(1, SPEC, [])
    assert stream.stage is Stage.AWAITING_PROGRAM
    assert Worker(7, stream, Host(1, stream=stream), 0).stage is WorkerStage.STARTING


def test_of_a_worker_that_nobody_could_look_at_nothing_is_claimed():
    assert Stuck() == Stuck(frames=(), sleeps=False), "else an error would tell its user of a lock"


def test_where_a_worker_was_stuck_does_not_change():
    """It is told when the worker is dead: a later look would find another one."""
    stuck = Stuck(("in f",), sleeps=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stuck.frames = ()
    assert stuck == Stuck(("in f",), sleeps=True)
    assert stuck != Stuck(("in f",)), "whether it waits or works is a part of it"


def test_a_planner_is_not_ready_when_it_is_started():
    assert not Planner(7, 10.0).ready
