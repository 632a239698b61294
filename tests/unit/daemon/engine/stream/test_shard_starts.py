"""Where the iterators of shards can begin, as far as anybody has told."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.shard_starts import KEPT, KEPT_EPOCHS, ShardStarts
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import ShardCame, ShardStart
from prefetchd.wire.shard_states import MOST_BYTES, unpack


def test_rule_1_the_nearest_one_before_a_batch():
    starts = ShardStarts(3)
    for number in (4, 9, 6):
        starts.learn(1, 2, (number, b"%d" % number))
    assert starts.before(1, 2, 3) is None
    assert starts.before(1, 2, 4) == (4, b"4")
    assert starts.before(1, 2, 8) == (6, b"6")
    assert starts.before(1, 2, 100) == (9, b"9")
    assert starts.before(0, 2, 100) is None
    assert starts.before(1, 1, 100) is None


def test_rule_2_what_was_told_last_is_kept_and_the_same_place_once():
    starts = ShardStarts(1)
    for number in (1, 2, 2, 3, 4):
        starts.learn(0, 0, (number, b"old"))
    starts.learn(0, 0, (3, b"new"))
    assert [starts.before(0, 0, number) for number in (1, 2, 3, 4)] == [None, (2, b"old"), (3, b"new"), (4, b"old")]
    assert KEPT == 3


def test_rule_2_memory_is_bounded():
    starts = ShardStarts(2)
    starts.learn(0, 0, (1, bytes(MOST_BYTES + 1)))
    assert starts.before(0, 0, 1) is None
    for epoch in range(20):
        for shard in (0, 1):
            starts.learn(epoch, shard, (1, b""))
    assert sum(starts.before(epoch, shard, 1) is not None for epoch in range(20) for shard in (0, 1)) == 2 * KEPT_EPOCHS


def asked(starts: ShardStarts, stands: dict, step: int, **fields) -> bytes:
    return starts.task_keys(Piece(Batch((0, step), 4, keys=b"keys"), 0, 4, **fields), stands)


def test_rule_3_a_worker_is_told_where_to_begin_unless_it_stands_there():
    starts = ShardStarts(3)
    starts.take(ShardStart(0, 1, 5, b"five"))
    first: dict = {}
    second: dict = {}
    assert asked(starts, first, 3 * 4 + 1) == b""
    assert asked(starts, first, 3 * 5 + 1) == b"", "it comes from the batch before"
    assert unpack(asked(starts, second, 3 * 7 + 1)) == (5, b"five")
    assert asked(starts, second, 3 * 8 + 1) == b""
    starts.take(ShardCame(0, 1, 9, b"nine"))
    assert unpack(asked(starts, first, 3 * 9 + 1)) == (9, b"nine")
    assert unpack(asked(starts, first, 3 * 6 + 1)) == (5, b"five"), "who goes back begins anew"


def test_a_digest_needs_no_state_and_another_stream_s_batch_its_keys():
    starts = ShardStarts(3)
    starts.take(ShardStart(0, 1, 5, b"five"))
    assert asked(starts, {}, 3 * 6 + 1, digests=True) == b"keys"
    assert asked(ShardStarts(0), {}, 3 * 6 + 1) == b"keys"


def test_where_a_worker_s_iterators_stand_is_remembered_of_the_latest_shards():
    starts, stands = ShardStarts(2), {}
    for epoch in range(3 * KEPT_EPOCHS):
        for step in (0, 1):
            starts.task_keys(Piece(Batch((epoch, step), 4), 0, 4), stands)
    assert len(stands) == 2 * KEPT_EPOCHS
    assert (3 * KEPT_EPOCHS - 1, 1) in stands


@pytest.mark.parametrize("message", [ShardStart(0, 3, 1, b""), ShardStart(0, -1, 1, b""), ShardCame(-1, 0, 1, b"")])
def test_what_no_shard_can_be_at(message):
    with pytest.raises(ProtocolError):
        ShardStarts(3).take(message)


def test_a_stream_without_shards_has_no_states():
    with pytest.raises(ProtocolError):
        ShardStarts(0).take(ShardStart(0, 0, 1, b""))
