"""What a trainer says of its cursors, and what it must not say."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.keeping import PLACEHOLDER_CONSUMER
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Assume, Consumed, Done, GiveBack, PlaceCursor, ShardStart
from prefetchd.wire.stream_spec import POSITION_LIMIT, StreamSpec
from tests.property.copying import identity
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 240, 4)


@pytest.fixture
def world():
    """A world with one trainer, session 1, whose iterator 1 has been offered four batches."""
    world = World(slots=4)
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, False)
    world.come_to_rest()
    assert trainer.can_next(1)
    return world


@pytest.mark.parametrize(
    "message",
    [
        Consumed(1, 5),
        Consumed(1, 0, released=(1, 2)),
        GiveBack(1, 9),
        PlaceCursor(2, POSITION_LIMIT, 0, False),
        PlaceCursor(2, 0, -1, False),
        PlaceCursor(1, 0, 3, False),
        Assume(0, 1),
        ShardStart(0, 0, 1, b""),
        Done(),
    ],
    ids=repr,
)
def test_what_it_must_not_say_changes_nothing(world, message):
    (session,) = world.trainers
    before = identity(world)
    with pytest.raises(ProtocolError):
        world.engine.message(session, message, world.now)
    assert identity(world) == before


def test_what_is_consumed_counts_for_its_consumer_and_its_stream(world):
    (session,) = world.trainers
    world.engine.message(session, Consumed(1, 2, waited_us=30), world.now)
    (stream,) = world.engine.streams.values()
    assert (stream.consumers[session].yielded, stream.consumers[session].waited_us) == (2, 30)
    assert (stream.counters.consumed, stream.counters.waited_us) == (2, 30)


def test_the_place_that_was_held_for_a_trainer_is_given_up_when_it_comes(world):
    (trainer,) = world.trainers.values()
    world.kill(trainer)
    (stream,) = world.engine.streams.values()
    assert {key[0] for key in stream.window.cursors} == {PLACEHOLDER_CONSUMER}
    later = world.join(SPEC)
    later.place(1, 0, 0, False)
    assert PLACEHOLDER_CONSUMER not in {key[0] for key in stream.window.cursors}
