"""What is known of a consumer that has a connection, and what is kept of one that has none."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.stream.consumers import AbsentConsumer, Consumer

NOW_S = 50.0


def connected(session: int = 1) -> Consumer:
    return Consumer(session, pid=100, record=0, protocol=1, has_program=True)


def test_consumers_are_told_apart_by_themselves_and_not_by_what_is_known_of_them():
    first, second = connected(), connected()
    assert first != second
    assert len({first, second}) == 2
    first.departed = True
    assert first in {first}, "what becomes known of one does not make it another"


def test_each_has_a_pace_of_its_own():
    busy, idle = connected(1), connected(2)
    busy.pace.took(30, NOW_S)
    assert busy.pace.lately(NOW_S) > idle.pace.lately(NOW_S) == 0.0


def test_one_that_has_just_come_has_neither_departed_nor_been_refused_nor_waited():
    consumer = connected()
    assert (consumer.departed, consumer.refused, consumer.waited_us, consumer.yielded) == (False, "", 0, 0)


def test_who_hands_over_a_program_does_not_hand_over_a_fork_unless_it_says_so():
    assert connected().has_program
    assert not connected().forks


def test_an_absent_one_may_come_back_unless_it_has_departed():
    """Who said goodbye is kept only for the batches that it still holds."""
    absent = AbsentConsumer(record=3, pid=100, position=(1, 4))
    assert not absent.departed
    departed = dataclasses.replace(absent, departed=True)
    assert departed == AbsentConsumer(3, 100, (1, 4), departed=True)
    assert departed != absent


def test_what_is_known_of_an_absent_one_does_not_change():
    absent = AbsentConsumer(0, 100, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        absent.position = (0, 1)
