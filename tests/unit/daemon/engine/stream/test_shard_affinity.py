"""Which worker makes the batches of which shard."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
from hypothesis import given

from prefetchd.daemon.engine.stream.shard_affinity import NOBODY, ShardAffinity


@dataclasses.dataclass
class Worker:
    number: int
    worker_index: int


def workers_by_shard(shards: int, indices: list[int], wanted: int) -> list[int]:
    """By shard: 100 + the index of its worker, or NOBODY."""
    workers = {100 + index: Worker(100 + index, index) for index in indices}
    found = ShardAffinity(shards, workers)
    found.want(wanted)
    return [found.of((3, step)) for step in range(shards, 2 * shards)]


def test_each_shard_has_one_and_they_are_shared_out_evenly():
    assert workers_by_shard(5, [0, 1], 2) == [100, 101, 100, 101, 100]
    assert workers_by_shard(2, [0, 1, 2], 3) == [100, 101]


def test_while_a_worker_is_away_the_shards_of_others_stay_where_they_are():
    assert workers_by_shard(6, [0, 2], 3) == [100, NOBODY, 102, 100, NOBODY, 102]
    assert workers_by_shard(3, [], 2) == [NOBODY] * 3
    assert workers_by_shard(3, [], 0) == [NOBODY] * 3


def test_with_as_many_workers_as_are_wanted_nobody_waits_for_a_place():
    assert workers_by_shard(4, [0, 2, 5], 3) == [100, 102, 105, 100]


@given(st.integers(1, 20), st.sets(st.integers(0, 9)), st.integers(1, 9))
def test_once_enough_workers_are_there_every_shard_has_one(shards, indices, wanted):
    found = workers_by_shard(shards, sorted(indices), wanted)
    assert set(found) <= {NOBODY, *(100 + index for index in indices)}
    if len(indices) >= wanted:
        assert NOBODY not in found


def test_changes_are_told():
    workers = {1: Worker(1, 0)}
    found = ShardAffinity(2, workers)
    found.want(1)
    assert found.of((0, 1)) == 1
    workers[7] = Worker(7, 1)
    found.changed()
    found.want(2)
    assert [found.of((0, 0)), found.of((0, 1))] == [1, 7]
    assert found.most_waiting > 0
