"""When a planner's death is counted, and how often it is started again."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.commands import Log, StartWorker
from prefetchd.daemon.engine.pool.planners import Planners
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState
from prefetchd.processes.process_exit import CLEAN, KILLED, MOST_DEATHS, MOST_KILLS, ORPHANED, UNEXPLAINED, ProcessExit
from prefetchd.wire.messages import PLANNER
from prefetchd.wire.stream_spec import StreamSpec


class Bed:
    """A stream whose order only a sampler knows, and of which a plan is wanted."""

    def __init__(self) -> None:
        self.commands: list = []
        self.failures: list[str] = []
        self.stream = StreamState(1, StreamSpec("0" * 32, 0, "sampler", 24, 4), self.commands)
        self.stream.stage, self.stream.host = Stage.RUNNING, Host(3, stream=self.stream, ready=True)
        assert self.stream.plans is not None
        self.stream.plans.want_beginning(0)
        numbers = iter(range(100, 200))
        self.planners = Planners(
            {1: self.stream},
            self.commands,
            lambda: next(numbers),
            lambda stream, code, text: self.failures.append(text),
        )

    def starts(self) -> list[StartWorker]:
        """The planners that are started now."""
        before = len(self.commands)
        self.planners.dispatch(0.0)
        return [each for each in self.commands[before:] if isinstance(each, StartWorker)]

    def dies(self, how: ProcessExit) -> Log:
        """The planner ends; the line about it."""
        self.starts()
        self.planners.died(self.stream, how)
        return next(each for each in reversed(self.commands) if isinstance(each, Log))


def test_one_is_started_when_there_is_a_question_and_another_after_its_death():
    bed = Bed()
    (first,) = bed.starts()
    assert (first.host, first.worker_index) == (3, PLANNER)
    assert bed.starts() == []
    bed.planners.died(bed.stream, CLEAN)
    (second,) = bed.starts()
    assert second.worker != first.worker


@pytest.mark.parametrize(("how", "most"), [(ProcessExit.exited(3), MOST_DEATHS), (KILLED, MOST_KILLS)], ids=str)
def test_one_that_dies_again_and_again_ends_the_stream(how, most):
    bed = Bed()
    for _ in range(most):
        bed.dies(how)
    assert bed.failures == []
    bed.dies(how)
    assert bed.failures[0].endswith(f"dies again and again: {how}")


@pytest.mark.parametrize("how", [UNEXPLAINED, ORPHANED], ids=str)
def test_a_death_that_follows_from_the_zygote_s_does_not_count(how):
    bed = Bed()
    for _ in range(2 * MOST_KILLS):
        bed.dies(how)
    assert bed.failures == []


def test_one_that_ends_in_order_is_no_warning():
    bed = Bed()
    assert bed.dies(CLEAN).level == "info"
    assert bed.dies(KILLED).level == "warning"
