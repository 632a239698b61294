"""Which remote workers share an actor, and when one is empty."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.remote.placement import CPUS_AN_ACTOR, Actor, Placement
from tests.budgets import tries


def placed(placement: Placement, largest_node_cpus: int) -> list[Actor]:
    """Gives all that wait a place, as the bridge does."""
    return [placement.add(lanes) for lanes in placement.sizes([], largest_node_cpus)]


@pytest.mark.parametrize(
    ("workers", "largest_node_cpus", "sizes"),
    [
        (0, 64, []),
        (1, 64, [1]),
        (4, 64, [4]),
        (10, 64, [4, 4, 2]),
        (5, 2, [2, 2, 1]),
        (3, 1, [1, 1, 1]),
        (3, 0, [1, 1, 1]),
    ],
)
def test_workers_come_together_as_far_as_a_node_has_room(workers, largest_node_cpus, sizes):
    placement = Placement()
    placement.want(range(1, workers + 1))
    assert placement.sizes([], largest_node_cpus) == sizes


@pytest.mark.parametrize(
    ("workers", "free_cpus", "sizes"),
    [
        (4, [2, 2], [2, 2]),
        (6, [3, 8], [4, 2]),
        (6, [1, 0], [1, 4, 1]),
        (5, [0, 0], [4, 1]),
    ],
)
def test_workers_go_where_cpus_are_free_first(workers, free_cpus, sizes):
    placement = Placement()
    placement.want(range(1, workers + 1))
    assert placement.sizes(free_cpus, 8) == sizes


def test_those_that_have_waited_longest_come_first():
    placement = Placement()
    placement.want([7, 3])
    placement.want([5])
    first, second = placed(placement, 2)
    assert (first.workers, second.workers) == ({7: 0, 3: 1}, {5: 0})
    assert placement.place_of(3) == (first, 1)
    assert placement.place_of(5) == (second, 0)
    assert placement.sizes([], 2) == [], "nobody waits any more"


def test_a_worker_without_a_place_has_none():
    placement = Placement()
    placement.want([1])
    assert placement.place_of(1) is None
    assert placement.place_of(2) is None


def test_a_place_that_is_given_back_is_not_used_again():
    placement = Placement()
    placement.want([1, 2])
    (actor,) = placed(placement, 4)
    assert placement.leave(1) is actor
    assert actor.workers == {2: 1}, "the other keeps its lane"
    assert placement.place_of(1) is None
    placement.want([3])
    (other,) = placed(placement, 4)
    assert other is not actor
    assert placement.place_of(3) == (other, 0)


def test_an_actor_whose_last_worker_leaves_has_none_left():
    placement = Placement()
    placement.want([1, 2])
    (actor,) = placed(placement, 4)
    for worker in (1, 2):
        assert placement.leave(worker) is actor
    assert not actor.workers


def test_one_that_leaves_before_it_has_a_place_gets_none():
    placement = Placement()
    placement.want([1, 2])
    assert placement.leave(1) is None
    (actor,) = placed(placement, 4)
    assert actor.workers == {2: 0}


def test_one_that_was_never_there_leaves_without_a_word():
    assert Placement().leave(9) is None


def test_the_workers_of_an_actor_that_has_ended_have_no_place():
    placement = Placement()
    placement.want([1, 2])
    first, second = placed(placement, 1)
    placement.remove(first)
    placement.remove(first)
    assert placement.place_of(1) is None
    assert placement.place_of(2) == (second, 0)


@given(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 9))
@tries(100)
def test_everybody_finds_one_place_that_fits_into_a_node(waves, largest_node_cpus):
    placement, actors, workers = Placement(), [], 0
    for wave in waves:
        placement.want(range(workers, workers + wave))
        workers += wave
        actors += placed(placement, largest_node_cpus)
    places = [placement.place_of(worker) for worker in range(workers)]
    assert None not in places
    assert len({(id(actor), lane) for actor, lane in places}) == workers
    for actor in actors:
        assert 1 <= len(actor.workers) <= max(1, min(CPUS_AN_ACTOR, largest_node_cpus))
        assert sorted(actor.workers.values()) == list(range(len(actor.workers)))
