"""What becomes of a dead worker's tasks, and what its death counts for."""

from __future__ import annotations

import signal

import pytest

from prefetchd.daemon.engine.commands import Log
from prefetchd.daemon.engine.pool.worker_deaths import Deaths
from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.stages import Stage, WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState, Worker
from prefetchd.processes.process_exit import KILLED, MOST_DEATHS, MOST_KILLS, ORPHANED, UNEXPLAINED, ProcessExit
from prefetchd.ring.policy import Ring
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import NO_WORKER_STATUS

SEGFAULT = ProcessExit.killed(signal.SIGSEGV)


class Bed:
    """A stream with a ring, and the handling of its workers' deaths."""

    def __init__(self) -> None:
        self.commands: list = []
        self.failures: list[str] = []
        self.stream = StreamState(1, StreamSpec("0" * 32, 0, "sequential", 24, 4), self.commands)
        self.stream.stage = Stage.RUNNING
        self.stream.window.ring = Ring(4)
        self.stream.window.ring.reserve(4)
        self.deaths = Deaths(self.commands, lambda stream, code, text, *rest: self.failures.append(text))

    def worker(self, stage: WorkerStage, *steps: int) -> Worker:
        """A worker that has a task of each of these steps."""
        worker = Worker(7, self.stream, Host(1, stream=self.stream), 0, stage)
        for step in steps:
            batch = Batch((0, step), 4, self.stream.window.ring.claim(), under_way=1)
            self.stream.window.batches[0, step] = batch
            worker.tasks[step] = Piece(batch, 0, 4)
        return worker

    def dies(self, worker: Worker, how: ProcessExit, *, innocent: bool = False) -> None:
        self.deaths.handle(worker, how, NO_WORKER_STATUS, alone=False, innocent=innocent)


def test_its_tasks_go_first_again_in_their_order():
    bed = Bed()
    bed.dies(bed.worker(WorkerStage.READY, 0, 1, 2), SEGFAULT)
    taken = [bed.stream.claims.queue.take(8).batch.position[1] for _ in range(3)]
    assert taken == [0, 1, 2]


@pytest.mark.parametrize(("how", "most"), [(SEGFAULT, MOST_DEATHS), (KILLED, MOST_KILLS)], ids=str)
def test_workers_that_die_before_they_are_ready_end_the_stream_after_a_few(how, most):
    bed = Bed()
    for _ in range(most):
        bed.dies(bed.worker(WorkerStage.STARTING), how)
    assert bed.failures == []
    bed.dies(bed.worker(WorkerStage.STARTING), how)
    (failure,) = bed.failures
    assert failure.endswith(f"died before they were ready: {how}")


@pytest.mark.parametrize("how", [UNEXPLAINED, ORPHANED], ids=str)
def test_a_death_that_follows_from_the_zygote_s_does_not_count(how):
    bed = Bed()
    for _ in range(2 * MOST_KILLS):
        bed.dies(bed.worker(WorkerStage.STARTING), how)
    assert bed.failures == []


def test_a_death_for_which_something_else_is_known_to_be_guilty_does_not_count():
    bed = Bed()
    for _ in range(2 * MOST_KILLS):
        bed.dies(bed.worker(WorkerStage.STARTING), KILLED, innocent=True)
    assert bed.failures == []


def test_the_log_says_in_words_how_it_ended():
    bed = Bed()
    bed.dies(bed.worker(WorkerStage.READY), SEGFAULT)
    (line,) = [each for each in bed.commands if isinstance(each, Log)]
    assert (line.event, dict(line.fields)["how"]) == ("worker died", "killed by SIGSEGV")
