"""Trainers that come, go and come back: which consumer record each has."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.wire.messages import Welcome
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 40, 4)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_record_is_nobodys_as_long_as_it_is_locked(says_goodbye):
    """A fork of the trainer, alive or dead, may have its lock for a moment longer."""
    world = World()
    first = world.join(SPEC, "s")
    first.place(1, 0, 0, True)
    world.come_to_rest()
    if says_goodbye:
        world.goodbye(first)
    world.engine.session_closed(first.session, world.told_marks(first), world.now, locked=True)
    second = world.join(SPEC, "s")
    assert second.record != first.record
    stream = world.engine.streams[second.stream]
    assert stream.consumers.keys() == {second.session}
    assert not stream.is_awaited
    world.engine.absent_died(second.stream, first.record, (), world.now)
    assert world.join(SPEC, "s").record == first.record


def test_trainers_are_told_of_another_configuration_and_asked_for_nothing():
    """They start the next daemon with it."""
    world = World()
    first, second = world.join(SPEC, "s"), world.join(SPEC, "other")
    world.engine.take_commands()
    world.engine.configured(b"/etc/streams.toml")
    told = {each.session: each.message for each in world.engine.take_commands() if isinstance(each, c.Send)}
    assert told.keys() == {first.session, second.session}
    for message in told.values():
        assert isinstance(message, Welcome)
        assert (message.config, message.program_wanted, message.is_new) == (b"/etc/streams.toml", False, False)
    assert told[first.session].consumer == first.record
    world.engine.configured(b"/etc/streams.toml")
    assert world.engine.take_commands() == [], "they know it"
