"""The daemon stops in order: what trainers say meanwhile is of no consequence."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.wire.messages import CloseCursor, Consumed, Farewell, GiveBack, Goodbye, PlaceCursor, Waiting
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 40, 4)


@pytest.mark.parametrize(
    "message",
    [Consumed(1, 1), Consumed(-1, 0, (1, 0, 1)), PlaceCursor(2, 0, 0, True), CloseCursor(1), GiveBack(1, 0), Waiting(1)]
    + [Goodbye()],
    ids=lambda message: type(message).__name__,
)
def test_a_message_that_comes_while_the_daemon_stops_is_no_error(message):
    """It crosses with the farewell; an error in answer to it would end the trainer, which could go on."""
    world = World()
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest()
    world.engine.stop("told to")
    world.engine.message(trainer.session, message, 0.0)
    told = [each.message for each in world.engine.take_commands() if isinstance(each, c.Send)]
    assert told == [Farewell("told to")]


def test_a_program_that_comes_while_the_daemon_stops_is_no_error():
    world = World()
    trainer = world.join(SPEC)
    world.engine.stop("told to")
    world.engine.program_arrived(trainer.session)


def test_a_daemon_that_keeps_its_streams_decides_and_writes_nothing_more():
    """They are the next daemon's; only farewells are said."""
    world = World()
    trainer = world.join(SPEC)
    trainer.place(1, 0, 0, True)
    trainer.activate(1)
    world.come_to_rest()
    world.engine.take_commands()
    world.engine.stop("told to", keep=True)
    assert world.engine.take_commands() == [c.Send(trainer.session, Farewell("told to"))]
    world.engine.session_closed(trainer.session, (), 0.0)
    world.engine.tick(1e6)
    assert world.engine.take_commands() == []
