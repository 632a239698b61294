"""Trainers that come, go and come back: which consumer record each has."""

from __future__ import annotations

import pytest

from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 40, 4)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_a_record_is_nobodys_as_long_as_it_is_locked(says_goodbye):
    """A fork of the trainer, alive or dead, may have its lock for a moment longer."""
    world = World()
    first = world.join(SPEC, "s")
    first.place(1, 0, 0, True)
    world.settle()
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
