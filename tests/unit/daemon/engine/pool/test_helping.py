"""Who helps whom: idle workers of the same zygote, a batch that is waited for and made by one alone."""

from __future__ import annotations

import dataclasses

from prefetchd.daemon.engine.commands import Assign, LendSamples
from prefetchd.daemon.engine.pool.helping import HELP_AFTER_S, awaits_help, helpers
from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState
from prefetchd.processes.process_exit import KILLED
from prefetchd.wire.messages import HELP, MEASURE
from prefetchd.wire.worker_status import LOADING, WorkerStatus
from tests.property.world import World
from tests.unit.daemon.engine.pool.test_pool import arrive, stream_of
from tests.unit.daemon.engine.stream.rooms import SPEC, given, walks, works
from tests.unit.daemon.engine.stream.rooms import stream_of as running

LATER_S = HELP_AFTER_S + 0.01


class Bed:
    """Three workers, of which the first makes the batch that a next() waits for."""

    def __init__(self, spec=SPEC, *, whole: bool = True, slots: int = 4) -> None:
        self.stream: StreamState = running(slots, spec=spec)
        self.cursor = walks(self.stream.window)
        self.cursor.blocked = True
        self.owner, self.second, self.third = (works(self.stream, number) for number in (1, 2, 3))
        self.piece: Piece = given(self.owner, 0, whole=whole)

    def helping(self, now_s: float = LATER_S) -> list[int]:
        return [worker.number for worker, owner, piece in helpers(self.stream, now_s)]


def test_all_that_idle_help_with_the_batch_that_is_waited_for():
    bed = Bed()
    found = list(helpers(bed.stream, LATER_S))
    assert [(worker, owner) for worker, owner, _ in found] == [(bed.second, bed.owner), (bed.third, bed.owner)]
    piece = found[0][2]
    assert (piece.kind, piece.batch, piece.rows, piece.owner_task) == (HELP, bed.piece.batch, 4, 0)
    assert bed.piece.batch.under_way == 1, "nothing waits for a helper"


def test_each_helps_once_with_a_task():
    bed = Bed()
    assert bed.helping() == [2, 3]
    assert bed.helping() == []


def test_not_before_the_task_has_taken_some_time():
    bed = Bed()
    assert bed.helping(HELP_AFTER_S / 2) == []
    assert awaits_help(bed.stream)
    assert bed.helping() == [2, 3]


def test_not_where_nobody_waits_for_that_batch():
    bed = Bed()
    bed.cursor.blocked = False
    assert bed.helping() == []


def test_what_is_measured_is_helped_at_once_and_before_there_is_a_ring():
    bed = Bed(slots=0)
    bed.piece.batch.grant = None
    bed.cursor.blocked = False
    assert bed.helping(now_s=0.0) == [2, 3]


def test_not_with_rows_which_are_shared_out_anyway():
    assert Bed(whole=False).helping() == []


def test_not_by_those_that_are_busy_start_or_end():
    bed = Bed()
    given(bed.second, 1, whole=True)
    bed.third.stage = WorkerStage.STARTING
    assert bed.helping() == []
    assert not awaits_help(bed.stream)


def test_not_by_those_of_another_zygote():
    bed = Bed()
    bed.second.host = Host(9, stream=bed.stream, ready=True)
    assert bed.helping() == [3]


def test_not_where_workers_have_died_or_samples_cannot_be_handed_over():
    bed = Bed()
    bed.stream.blame.died((0, 0), WorkerStatus(1, LOADING, 2), alone=False)
    assert bed.helping() == []
    bed = Bed()
    bed.stream.unhelpful = True
    assert bed.helping() == []
    assert not awaits_help(bed.stream)


def test_not_where_a_batch_s_place_decides_its_worker():
    assert Bed(dataclasses.replace(SPEC, dealt=True, workers=3)).helping() == []


class Watched(World):
    """Keeps what is given to workers."""

    def __init__(self) -> None:
        self.given: list[Assign | LendSamples] = []
        super().__init__(workers=0, by_rows=False)

    def _run(self, command) -> None:
        if isinstance(command, (Assign, LendSamples)):
            self.given.append(command)
        super()._run(command)


def measuring_alone() -> tuple[Watched, StreamState]:
    """A world whose stream measures its first batch, which is made whole, while its other workers idle."""
    world = Watched()
    stream = stream_of(world, "a", workers=3)
    arrive(world)
    return world, stream


def helping(world: World) -> list:
    return [each for each in world.workers.values() if each.tasks and each.tasks[0].kind == HELP]


def test_the_pool_lends_the_owner_s_status_before_it_gives_the_task():
    world, _ = measuring_alone()
    (owner,) = [each for each in world.workers.values() if each.tasks and each.tasks[0].kind == MEASURE]
    helpers = [each.number for each in helping(world)]
    assert len(helpers) == 2
    assert [(type(each), each.worker) for each in world.given] == [
        (Assign, owner.number),
        *((kind, helper) for helper in helpers for kind in (LendSamples, Assign)),
    ]
    assert {each.owner for each in world.given if isinstance(each, LendSamples)} == {owner.number}
    assert [each.tasks[0].slot for each in helping(world)] == [owner.tasks[0].number] * 2


def test_whoever_says_that_it_is_of_no_use_is_believed():
    world, stream = measuring_alone()
    world.is_by_rows = lambda number: True
    for worker in helping(world):
        world.work([each for each in world.workers.values() if each.tasks].index(worker))
    assert stream.unhelpful


def test_a_helper_that_dies_takes_nothing_with_it():
    world, stream = measuring_alone()
    for worker in helping(world):
        world._die(worker, 1, KILLED)
    world.run()
    assert stream.counters.failed == 0
    (batch,) = stream.window.batches.values()
    assert (batch.under_way, batch.error) == (1, None)
    assert stream.blame.is_about(batch.position), "from now on it is made without helpers"
