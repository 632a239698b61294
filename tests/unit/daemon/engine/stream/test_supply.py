"""Whether a stream's consumers are about to wait."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.supply import FEW_AHEAD
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 60, 3)  # 20 steps an epoch


def begun(slots: int = 64, spec: StreamSpec = SPEC, **arguments):
    """A trainer whose iterator has begun, and nothing is made yet."""
    world = World(1, slots)
    trainer = world.join(spec, **arguments)
    trainer.place(1, 0, 0, False)
    return world, trainer


def make(world, ready: int) -> None:
    """Until so many batches are ready before the first cursor of the stream."""
    stream = world.engine.streams[1]
    cursor = next(iter(stream.window.cursors.values()))
    for _ in range(10_000):
        if stream.window.lengths.distance(cursor.next, cursor.offered) >= ready:
            return
        if world.pending:
            world.deliver(0)
        else:
            world.work(0)
    raise AssertionError("not so many")


def is_short(world) -> bool:
    return world.engine.streams[1].is_short(world.now)


def test_until_a_few_are_ready_it_is():
    world, _ = begun()
    assert is_short(world), "there is not even a ring"
    make(world, FEW_AHEAD)
    assert is_short(world)
    make(world, FEW_AHEAD + 1)
    assert not is_short(world)


def test_of_a_small_ring_half_is_enough():
    world, _ = begun(slots=4)
    make(world, 2)
    assert is_short(world)
    make(world, 3)
    assert not is_short(world)


def test_a_call_that_waits_makes_it_short_whatever_is_claimed():
    """Found as claimed batches beside which nobody looked at who waits."""
    world, trainer = begun()
    make(world, 10)
    assert world.engine.streams[1].claims.has_work()
    world.engine.streams[1].window.cursors[trainer.session, 1].blocked = True
    assert is_short(world)


def test_what_it_takes_in_a_second_is_to_be_ready():
    world, trainer = begun()
    make(world, 18)
    for _ in range(8):
        trainer.next(1, hold=False)
    assert not is_short(world), "10 are ready, and it has taken 8"
    trainer.next(1, hold=False)
    assert is_short(world), "9 are ready, and it has taken 9"
    world.now += 60.0
    assert not is_short(world), "it has taken none for a minute"


@pytest.mark.parametrize("next_epoch", [0, 3, 8])
def test_at_an_epochs_end_the_next_one_counts(next_epoch):
    world, trainer = begun()
    trainer.place(2, 1, 0, True)
    make(world, 20)
    for _ in range(18):
        trainer.next(1, hold=False)
    world.now += 600.0  # what it has taken is forgotten
    stream = world.engine.streams[1]
    while len(stream.window.batches) < 2 + next_epoch:
        world.work(0)
    assert is_short(world) == (2 + next_epoch <= FEW_AHEAD)


def test_one_that_waits_for_its_first_iterator_walks_through_epochs():
    world = World(1, 64)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    assert is_short(world)
    world.come_to_rest()
    world.engine.streams[1].consumers[trainer.session].pace.took(50, world.now)
    assert not is_short(world), "64 are ready, of three epochs"


def test_who_has_all_that_it_will_ever_want_is_not():
    world, trainer = begun()
    make(world, 20)
    for _ in range(19):
        trainer.next(1, hold=False)
    assert not is_short(world), "one is left, and no next iterator"


def test_of_several_one_is_enough_and_of_none_there_is_nothing_to_say():
    world, trainer = begun(shared=True)
    other = world.join(SPEC, shared=True)
    other.place(1, 0, 15, False)
    make(world, 8)
    assert is_short(world) == (world.engine.streams[1].window.cursors[other.session, 1].offered[1] - 15 <= FEW_AHEAD)
    world.come_to_rest()
    assert not is_short(world)
    world.engine.streams[1].window.cursors[other.session, 1].blocked = True
    assert is_short(world)
    for each in (trainer, other):
        each.close(1)
    assert not is_short(world)
