"""Batches behind the consumer are kept, and offered again only as they were."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.stream.keeping import GOES_ON
from prefetchd.ring.policy import SlotState
from prefetchd.wire.messages import DIGEST, MEASURE
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 120, 3)


class Run:
    """A trainer on a stream of one worker; `tasks` are (kind, step) of all that the worker was given, and each batch's
    holder writes into it if that is so of its step."""

    def __init__(self, lookback: int, *, slots: int = 12, writes=lambda step: False, **spec) -> None:
        self.world = World(1, slots, lookback=True)
        self.spec = dataclasses.replace(SPEC, lookback=lookback, **spec)
        self.tasks: list[tuple[int, int]] = []
        work, self.writes = self.world._work, writes

        def watched(index: int) -> None:
            worker = next(worker for worker in self.world.workers.values() if worker.tasks)
            self.tasks.append((worker.tasks[0].kind, worker.tasks[0].step))
            work(index)

        self.world._work = watched
        self.world.scribbles = lambda generation: self.writes(self.trainer.cursors[self.cursor].step - 1)
        self.cursor = 0
        self.join()

    def join(self, step: int = 0) -> None:
        self.trainer = self.world.join(self.spec)
        self.go_to(step)

    def go_to(self, step: int) -> None:
        """Another iterator, from there."""
        if self.cursor in self.trainer.cursors:
            self.trainer.close(self.cursor)
        self.cursor += 1
        self.trainer.place(self.cursor, 0, step, True)
        self.trainer.activate(self.cursor)

    def take(self, batches: int, hold: bool = False) -> None:
        for _ in range(batches):
            self.world.come_to_rest()
            assert self.trainer.can_next(self.cursor)
            self.trainer.next(self.cursor, hold)
        self.trainer.flush()
        self.world.come_to_rest()

    def made(self) -> list[int]:
        """The steps of batches that were made since the last call."""
        self.world.come_to_rest()
        made = sorted({step for kind, step in self.tasks if kind not in (DIGEST, MEASURE)})
        self.tasks.clear()
        return made

    @property
    def stream(self):
        return self.world.engine.streams[self.trainer.stream]


def test_batches_that_were_yielded_are_offered_again():
    run = Run(4)
    run.take(10)
    assert run.made() == list(range(18)), "10 yielded, and 8 ahead: the other 4 of the ring lie behind"
    run.go_to(6)
    run.take(4)
    assert run.made() == []
    assert len(run.stream.window.lookback) == 4


def test_what_its_holder_has_written_to_is_made_again():
    run = Run(4, writes=lambda step: step in (7, 8))
    run.take(10)
    run.made()
    run.go_to(6)
    run.take(4)
    assert run.made() == [7, 8]


def test_what_lies_further_back_is_made_again():
    run = Run(4)
    run.take(10)
    run.made()
    run.go_to(5)
    run.take(1)
    assert 5 in run.made()


def test_a_trainer_that_is_killed_and_resumes_earlier():
    run = Run(5, writes=lambda step: step == 8)
    run.take(8)
    run.take(2, hold=True)
    run.made()
    run.world.kill(run.trainer)
    run.world.come_to_rest()
    run.made()
    run.join(5)
    run.take(5)
    made = run.made()
    assert [step for step in made if step <= 12] == [8], "it held 8 and 9 when it died, and had written to 8"
    assert made[1:] == [13, 14, 15, 16], "the other half of what lay ahead made room for the beginning"


@pytest.mark.parametrize("trainer_too", [False, True])
def test_the_daemon_is_killed(trainer_too):
    run = Run(5, writes=lambda step: step == 8)
    run.take(10)
    run.made()
    if trainer_too:
        run.world.kill(run.trainer)
    run.world.crash()
    if trainer_too:
        run.join(5)
    else:
        run.world.reconnect(run.trainer)
        run.go_to(5)
    run.take(5)
    assert {5, 6, 7, 8, 9} & set(run.made()) == {8}


def test_a_batch_that_was_held_twice_survives_the_daemon():
    """Once by a trainer that is dead by now: that it is marked must not take it from the one that holds it."""
    run = Run(5)
    run.take(10)
    run.world.kill(run.trainer)
    run.join(6)
    run.take(2, hold=True)
    run.made()
    run.world.crash()
    run.world.reconnect(run.trainer)
    run.take(20)
    while run.trainer.held:
        run.trainer.let_go(0)


def test_at_most_half_of_the_ring_lies_behind():
    run = Run(100, slots=10)
    run.take(20)
    assert len(run.stream.window.lookback) == 5
    assert run.stream.window.ring.count(SlotState.LEASED) == 5, "the other half lies ahead"


def test_what_lies_behind_gives_way_to_batches_that_are_held():
    run = Run(6)
    run.take(12)
    assert len(run.stream.window.lookback) == 6
    for _ in range(5):
        run.take(1, hold=True)
    assert len(run.trainer.held) == 5
    assert len(run.stream.window.lookback) < 6
    run.take(3)


def test_without_lookback_no_digest_is_taken():
    run = Run(0)
    run.take(10)
    assert DIGEST not in {kind for kind, _ in run.tasks}
    run.made()
    run.go_to(9)
    run.take(1)
    assert 9 in run.made()


def test_a_worker_that_dies_at_a_digest_blames_nobody():
    run = Run(4)
    run.take(10)
    run.go_to(6)
    while not any(worker.tasks and worker.tasks[0].kind == DIGEST for worker in run.world.workers.values()):
        run.world.deliver(0)
    run.world.kill_worker(0)
    run.made()
    run.take(4)
    assert run.made() == []


def test_a_new_consumer_decides_how_much_is_kept():
    run = Run(4)
    run.take(10)
    run.world.goodbye(run.trainer)
    run.world.kill(run.trainer)
    run.spec = dataclasses.replace(run.spec, lookback=0)
    run.join(10)
    run.take(10)
    assert len(run.stream.window.lookback) == 0


def test_what_a_trainer_had_not_told_of_its_progress_its_record_tells():
    run = Run(0, slots=20)
    run.take(3)
    trainer, world = run.trainer, run.world
    assert len(trainer.cursors[run.cursor].offers) > 4
    world.engine.session_closed(trainer.session, (), world.now, stood=(run.cursor, 0, 7))
    assert run.stream.window.cursors[GOES_ON].next == (0, 7)


@pytest.mark.parametrize("stood", [(99, 0, 7), (1, 1, 7), (1, 0, 2), (1, 0, 1 << 60)])
def test_a_record_that_cannot_be_right_tells_nothing(stood):
    run = Run(0, slots=20)
    run.take(3)
    run.world.engine.session_closed(run.trainer.session, (), run.world.now, stood=stood)
    assert run.stream.window.cursors[GOES_ON].next == (0, 3)
