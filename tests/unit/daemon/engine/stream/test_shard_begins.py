"""When the shards of an iterable dataset begin an epoch."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.shard_begins import KEPT, MOST_DEATHS, ShardBegins
from prefetchd.ring.shard_lengths import ShardLengths
from prefetchd.wire.messages import BEGIN, MEASURE


def begins(shards: int = 3) -> tuple[ShardBegins, ShardLengths]:
    lengths = ShardLengths(shards)
    return ShardBegins(shards, 4, lengths), lengths


def piece(epoch: int, step: int, **fields) -> Piece:
    return Piece(Batch((epoch, step), 4), 0, 4, **fields)


def test_rule_1_a_beginning_is_a_task_of_its_own():
    found, _ = begins()
    first = found.before(piece(2, 4), {})
    assert first is not None
    assert (first.kind, first.batch.position, first.batch.grant) == (BEGIN, (2, 4), None)
    assert piece(2, 4).kind == MEASURE


def test_rule_2_all_other_shards_are_wanted_with_the_first():
    found, _ = begins()
    found.before(piece(2, 4), {})
    assert found.wanted == {(2, 2): (2, 5), (2, 0): (2, 6)}, "from the first batch on that is asked for"


def test_rule_2_a_shard_that_the_worker_has_begun_is_not_begun_again():
    found, _ = begins()
    assert found.before(piece(2, 4), {(2, 1): 1}) is None
    assert found.wanted == {}


def test_nothing_begins_for_a_task_without_rows():
    found, _ = begins()
    assert found.before(piece(0, 0, digests=True), {}) is None
    assert found.before(piece(0, 0, checks=True), {}) is None
    assert found.wanted == {}


def test_rule_2_a_shard_that_has_ended_is_not_wanted():
    found, lengths = begins()
    lengths.learn_shard(2, 0, 2)
    found.before(piece(2, 4), {})
    assert list(found.wanted) == [(2, 2)]
    lengths.learn_shard(2, 2, 1)
    assert found.take((2, 2)) is None, "it has ended since"


def test_rule_3_a_lost_beginning_is_wanted_again_before_others():
    found, _ = begins()
    first = found.before(piece(0, 0), {})
    assert first is not None
    found.lost(first, died=False)
    assert list(found.wanted) == [(0, 0), (0, 1), (0, 2)]


def test_rule_3_after_some_deaths_its_first_batch_begins_a_shard():
    found, _ = begins()
    for _ in range(MOST_DEATHS):
        first = found.before(piece(0, 0), {})
        assert first is not None
        found.lost(first, died=True)
    assert found.before(piece(0, 0), {}) is None
    assert (0, 1) in found.wanted


def test_rule_4_a_shard_that_had_begun_begins_again():
    found, _ = begins()
    first = found.before(piece(0, 0), {})
    assert first is not None
    assert not first.again
    found.begun(first)
    second = found.before(piece(0, 3), {})
    assert second is not None
    assert second.again


def test_rule_4_others_begin_anew_where_they_stand():
    found, lengths = begins()
    first = found.before(piece(0, 9), {})
    assert first is not None
    stands = {(0, 0): 3, (0, 1): 4, (1, 1): 7}
    anew = found.anew(first, stands)
    assert [(each.batch.position, each.anew) for each in anew] == [((0, 13), True)], "of this epoch, and not itself"
    lengths.learn_shard(0, 1, 4)
    assert found.anew(first, stands) == []


def test_memory_is_bounded():
    found, _ = begins(2)
    for epoch in range(KEPT):
        first = found.before(piece(epoch, 0), {})
        assert first is not None
        found.lost(first, died=True)
        found.begun(first)
        found.wanted.clear()
        other = found.before(piece(epoch, 1), {})
        assert other is not None
        found.begun(other)
        found.wanted.clear()
    assert len(found._begun) == KEPT
    assert not found._deaths
