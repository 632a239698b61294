"""Who gives way to whom: of one process the streams that nobody iterates over to those that are waited for."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from prefetchd.daemon.engine.resting import RETURNS_WITHIN_S, decide_who_rests
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.supply import FEW_AHEAD
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 300, 3)
SLOTS = 12
ANOTHER_PROCESS = 2


def joined(world: World, name: str, *, pid: int = 1):
    """(trainer, its stream), with an iterator that has not begun."""
    trainer = world.join(SPEC, name, pid=pid)
    trainer.place(1, 0, 0, True)
    return trainer, world.engine.streams[trainer.stream]


class WorkersInTurn(World):
    """A world whose busy workers have their turns."""

    def __init__(self, workers: int = 8, slots: int = SLOTS) -> None:
        super().__init__(workers, slots)
        # Long enough for batches to be cut: of short ones all that the ring has room for is under way at once.
        self.task_us = lambda stream, rows: 20_000
        self.turns = itertools.count()


@pytest.fixture
def world() -> World:
    return WorkersInTurn()


def goes_on(world: World) -> None:
    """Whatever is pending happens, or else one of the busy workers, in turn, does its next task."""
    if world.pending:
        world.deliver(0)
    elif any(worker.tasks for worker in world.workers.values()):
        world.work(next(world.turns))


def takes_all(world: World, trainer, batches: int) -> None:
    """The trainer takes so many batches, each as soon as it is ready."""
    while batches:
        while not trainer.can_next(1):
            trainer.wait(1)
            goes_on(world)
        while batches and trainer.can_next(1):
            trainer.next(1, False)
            world.run()
            batches -= 1


def test_rule_3_what_nobody_iterates_over_is_not_filled_while_another_loader_s_batches_are_taken_at_once(world):
    """Found with a second loader made for validation: the first batches of the training took twice as long."""
    training, train = joined(world, "train")
    validating, validate = joined(world, "validate")
    training.activate(1)
    takes_all(world, training, 40)
    assert not validate.window.batches
    assert not validate.workers, "workers that have nothing to do are not forked yet"
    assert train.counters.batches >= 40
    validating.activate(1)
    takes_all(world, validating, 3)


@pytest.mark.parametrize("begins", [True, False], ids=["iterated over", "made before"])
def test_rule_3_it_is_filled_as_soon_as_the_other_one_is_ahead(world, begins):
    training, train = joined(world, "train")
    _, validate = joined(world, "validate")
    if begins:
        training.activate(1)
    while not validate.window.batches:
        assert train.counters.batches < SLOTS
        goes_on(world)
    assert train.counters.batches > 0
    world.come_to_rest()
    assert validate.counters.batches >= SLOTS


def test_rule_3_what_was_made_later_is_given_way_to_once_it_is_iterated_over(world):
    training, train = joined(world, "train")
    world.come_to_rest()
    validating, _ = joined(world, "validate")
    validating.activate(1)
    before = train.counters.batches
    # An iterator is begun and given up: what it leaves behind is to be made anew.
    training.close(1)
    training.place(2, 1, 0, True)
    under_way = sum(not batch.filled for batch in train.window.batches.values())
    takes_all(world, validating, 60)
    assert train.counters.batches <= before + under_way < before + SLOTS
    world.come_to_rest()
    assert train.counters.batches >= before + SLOTS


@pytest.mark.parametrize("turn", range(8))
def test_rule_3_another_process_s_is_not_given_way_to(world, turn):
    world.turns = itertools.count(turn)
    training, _ = joined(world, "train")
    _, validate = joined(world, "validate", pid=ANOTHER_PROCESS)
    training.activate(1)
    takes_all(world, training, 40)
    # By whose turn it was at first, 5 to 11. Of the same process none would be made.
    assert validate.counters.batches >= SLOTS / 3


def test_rule_3_nobody_waits_for_what_is_paused_or_has_failed(world):
    _, train = joined(world, "train")
    _, validate = joined(world, "validate")
    world.engine.pause("train")
    world.come_to_rest()
    assert not train.counters.batches
    assert validate.counters.batches >= SLOTS


def test_rule_5_kept_streams_take_no_part(world):
    training, train = joined(world, "train")
    _, kept = joined(world, "kept")
    training.activate(1)
    kept.keeper = next(iter(kept.consumers))
    decide_who_rests(world.engine.streams.values(), world.now)
    assert not kept.claims.rests
    kept.keeper = None
    decide_who_rests(world.engine.streams.values(), world.now)
    assert kept.claims.rests
    train.keeper = next(iter(train.consumers))
    decide_who_rests(world.engine.streams.values(), world.now)
    assert not kept.claims.rests


def dead(world: World, batches: int):
    """The stream of a trainer that was killed when it had so many batches ready."""
    training, train = joined(world, "train")
    training.activate(1)
    while train.counters.batches < batches:
        goes_on(world)
    world.kill(training)
    return train


def test_rule_4_what_a_dead_trainer_has_left_is_filled_on_when_none_has_come_back():
    """Found with a script that was killed and started again: its imports took twice as long."""
    # Of later batches each worker has one of its own under way.
    world = WorkersInTurn(2)
    train = dead(world, FEW_AHEAD + 1)
    world.come_to_rest(waits=False)
    before = train.counters.batches
    assert FEW_AHEAD < before < SLOTS
    world.now += RETURNS_WITHIN_S + 0.1
    world.tick()
    world.come_to_rest()
    assert train.counters.batches >= SLOTS


def test_rule_4_what_a_trainer_that_goes_on_would_wait_for_is_made_at_once():
    world = WorkersInTurn(1, 4 * SLOTS)
    train = dead(world, 1)
    world.come_to_rest(waits=False)
    assert FEW_AHEAD < train.counters.batches < SLOTS


def test_rule_4_who_comes_back_has_its_ring_filled(world):
    train = dead(world, FEW_AHEAD + 1)
    world.come_to_rest(waits=False)
    back, again = joined(world, "train")
    assert again is train
    back.activate(1)
    world.come_to_rest()
    assert train.counters.batches >= SLOTS


def test_rule_4_nothing_is_guessed_for_who_has_come_and_not_yet_said_where_it_begins(world):
    """Found as a first batch that was ready, and came 180 ms late: what would verify it was in tasks for others."""
    train = dead(world, FEW_AHEAD + 1)
    world.come_to_rest(waits=False)
    before = train.counters.batches
    back = world.join(SPEC, "train", pid=ANOTHER_PROCESS)
    assert world.engine.streams[back.stream] is train
    assert not train.lingers
    world.come_to_rest(waits=False)
    assert train.counters.batches == before
    back.place(1, 0, 2, True)
    world.come_to_rest()
    assert train.counters.batches >= SLOTS


def test_rule_4_but_not_for_ever(world):
    train = dead(world, FEW_AHEAD + 1)
    world.come_to_rest(waits=False)
    world.join(SPEC, "train", pid=ANOTHER_PROCESS)
    world.now += RETURNS_WITHIN_S + 0.1
    world.tick()
    world.come_to_rest()
    assert train.counters.batches >= SLOTS


def test_rule_4_its_processes_are_kept_meanwhile(world):
    train = dead(world, FEW_AHEAD + 1)
    world.come_to_rest(waits=False)
    world.now += RETURNS_WITHIN_S - 0.1
    world.tick()
    assert train.stage is Stage.RUNNING
    assert train.workers


@pytest.mark.parametrize("pickles", [True, False])
def test_rule_4_a_fork_rests_only_where_nobody_else_has_its_program(pickles):
    """It has its dead trainer's memory, and had it for the 10 s of the rest."""
    world = WorkersInTurn(2)
    trainer = world.join(SPEC, "train", forks=True, pickles=pickles)
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    train = world.engine.streams[trainer.stream]
    while train.counters.batches < FEW_AHEAD + 1 or world.pending:
        goes_on(world)
    world.kill(trainer)
    world.come_to_rest(waits=False)
    before = train.counters.batches
    world.tick()
    assert (train.stage, bool(world.hosts)) == ((Stage.PARKED, False) if pickles else (Stage.RUNNING, True))
    assert before < SLOTS
    world.now += RETURNS_WITHIN_S + 0.1
    world.tick()
    world.come_to_rest()
    assert train.counters.batches >= SLOTS, "it is filled on, by whatever zygote"


def test_rule_4_a_clean_end_is_none(world):
    training, train = joined(world, "train")
    training.activate(1)
    while train.counters.batches < FEW_AHEAD + 1:
        goes_on(world)
    world.goodbye(training)
    world.kill(training)
    world.come_to_rest(waits=False)
    assert train.counters.batches >= SLOTS


def test_rule_6_what_a_dead_daemon_has_left_of_a_plan_waits_for_who_can_say_what_it_was_made_from():
    """Found under load: the next daemon planned by what the program said, and dropped all that was ready."""
    world = World(slots=SLOTS, planned=True)
    trainer = world.join(dataclasses.replace(SPEC, order="sampler"))
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest()
    world.kill(trainer)
    world.crash()
    world.former_workers_die()
    (stream,) = world.engine.streams.values()
    ready = set(stream.window.batches)
    assert ready
    world.come_to_rest()
    assert stream.claims.rests
    assert not world.planners
    back = world.join(stream.spec, "s")
    world.come_to_rest()
    assert not world.planners
    back.place(1, 0, 0, True)
    world.run()
    assert not stream.claims.rests
    assert not world.planners, "its process comes first"
    assert ready <= set(stream.window.batches)
    world.come_to_rest()
    assert world.planners
