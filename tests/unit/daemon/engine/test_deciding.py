"""Trainers that wait for a fingerprint before they can have a stream."""

from __future__ import annotations

from prefetchd.daemon.engine.registry import DECIDE_LATEST_S, DECIDE_WITHIN_S
from prefetchd.wire.messages import Deciding, Identified, WaitNamed
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 13, 3)


def left_behind(name: str = "s") -> World:
    """A ring without a trainer."""
    world = World(workers=2, slots=4)
    trainer = world.join(SPEC, name, shared=True, forks=True)
    trainer.place(1, 0, 0, True)
    world.come_to_rest()
    world.kill(trainer)
    world.come_to_rest()
    return world


def test_one_that_shares_a_stream_by_its_name_waits_however_long_it_takes_and_hears_of_it():
    """Found as a constructor that raised "the daemon has not answered for 60 s" while a fingerprint was being taken."""
    world = left_behind()
    trainer = world.join(SPEC, shared=True, forks=True)
    assert trainer.told_to_wait == [Deciding(takes_fingerprint=True)]
    silent_s, longest_s = 0.0, 0.0
    for _ in range(600):
        before = len(trainer.told_to_wait)
        world.now += 0.25
        world.tick()
        silent_s = silent_s + 0.25 if len(trainer.told_to_wait) == before else 0.0
        longest_s = max(longest_s, silent_s)
    assert longest_s < 10
    said = [each.text for each in trainer.told_to_wait if isinstance(each, WaitNamed)]
    assert ["60 s" in said[0], "90 s" in said[1], "120 s" in said[2], "150 s" in said[3]] == [True] * 4
    assert "stream 's' has batches" in said[0]
    assert "without stream=" in said[0]
    world.come_to_rest()
    assert trainer.stream_name == "s"
    trainer.place(1, 0, 0, False)
    world.run()
    assert trainer.can_next(1), "it has what was there"


def test_one_that_does_not_name_its_stream_waits_a_moment_and_hears_nothing():
    world = left_behind()
    trainer = world.join(SPEC, forks=True)
    for _ in range(20):
        world.now += 0.25
        world.tick()
    assert trainer.told_to_wait == [Deciding(takes_fingerprint=True)]
    assert trainer.stream_name == "s", "its process has left that itself, and gives it up"


def test_one_that_tells_itself_what_its_stream_is_of_has_what_is_there_before_its_fork_tells():
    world = left_behind()
    trainer = world.join(SPEC, forks=True)
    assert not trainer.stream_name
    world.engine.message(trainer.session, Identified(SPEC.fingerprint), world.now)
    world.run()
    assert trainer.stream_name == "s"
    assert not trainer.is_identified
    trainer.place(1, 0, 0, False)
    world.run()
    assert trainer.can_next(1), "it has what was there"
    # Late, and of no interest any more.
    world.engine.message(trainer.session, Identified(SPEC.fingerprint), world.now)
    world.come_to_rest()
    assert trainer.is_identified


def test_what_it_tells_of_another_program_counts_only_when_its_fork_tells_it():
    """A fingerprint may be another in each process; by that of the trainer its own fork would be refused."""
    world = left_behind()
    trainer = world.join(SPEC, forks=True)
    for fingerprint in ("1" * 32, ""):
        world.engine.message(trainer.session, Identified(fingerprint), world.now)
        world.run()
        assert not trainer.stream_name
    assert trainer.told_to_wait == 3 * [Deciding(takes_fingerprint=True)], "it is to have its fork tell"
    world.come_to_rest()
    assert trainer.stream_name == "s"
    assert world.engine.stream_of(trainer.session).spec.fingerprint == SPEC.fingerprint


def test_one_that_knows_its_fingerprint_waits_for_that_of_the_stream_it_shares():
    """Found by chaos: the constructor of one that does not fork raised "in use (not known what it is of)"."""
    world = World(workers=2, slots=4)
    first = world.join(SPEC, shared=True, forks=True)
    second = world.join(SPEC, shared=True)
    assert not world.refused
    assert second.told_to_wait
    world.come_to_rest()
    assert [first.stream_name, second.stream_name] == ["s", "s"]
    second.place(1, 0, 0, False)
    world.come_to_rest()
    assert second.can_next(1)


def left_by_another_process() -> World:
    """A ring whose trainer, of another process than those that come, is dead."""
    world = left_behind()
    for stream in world.engine.streams.values():
        stream.left_by = 99
    return world


def waits_s(world: World, trainer) -> float:
    """How long the trainer is without a stream, if its fork never tells anything."""
    began_s = world.now
    while not trainer.stream_name:
        world.now += 0.25
        world.tick()
    return world.now - began_s


def test_one_whose_iterator_has_not_begun_waits_longer_for_what_may_be_there():
    """Found with two loaders of one script on a busy machine: while the second was made the first one's time was over,
    and what was ready for it was made again."""
    world = left_by_another_process()
    trainer = world.join(SPEC, forks=True)
    trainer.place(1, 0, 0, True)
    assert waits_s(world, trainer) == DECIDE_LATEST_S


def test_once_its_iterator_has_begun_it_waits_no_longer_than_a_moment():
    world = left_by_another_process()
    trainer = world.join(SPEC, forks=True)
    trainer.place(1, 0, 0, True)
    world.now += 2.0
    world.tick()
    trainer.activate(1)
    assert waits_s(world, trainer) == DECIDE_WITHIN_S
    late = left_by_another_process()
    trainer = late.join(SPEC, forks=True)
    trainer.place(1, 0, 0, True)
    late.now += DECIDE_LATEST_S - 0.25
    late.tick()
    trainer.activate(1)
    assert waits_s(late, trainer) == 0.25, "nor longer than all of its time"
