"""Steps of shards that end, against all steps written out."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from prefetchd.ring.cursors import MOST_EMPTY_EPOCHS, advance_fill, new_cursor
from prefetchd.ring.shard_lengths import KEPT_EPOCHS, ShardLengths
from tests.budgets import tries

SHARDS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def real_steps(batches: list[int], known: set[int], most: int = 60) -> list[int]:
    """The steps that may have a batch, as far as is known."""
    shards = len(batches)
    return [step for step in range(most) if step % shards not in known or step // shards < batches[step % shards]]


@given(SHARDS, st.data())
@tries(300)
def test_what_is_void_where_it_ends_and_how_far_it_is(batches, data):
    lengths = ShardLengths(len(batches))
    order = data.draw(st.permutations(range(len(batches))))
    told = data.draw(st.integers(0, len(batches)))
    for shard in order[:told]:
        lengths.learn_shard(3, shard, batches[shard])
    real = real_steps(batches, set(order[:told]))
    if told == len(batches):
        end = max(real, default=-1) + 1
        assert lengths.steps(3) == end
    else:
        end = 60
        assert lengths.steps(3) is None
    for step in range(min(end, 40)):
        assert lengths.is_void((3, step)) == (step not in real)
        following = next((each for each in real if each >= step), end)
        assert lengths.skip_voids((3, step)) == (3, following)
        if step in real:
            after = next((each for each in real if each > step), None)
            assert lengths.after((3, step)) == ((3, after) if after is not None else (4, 0))
        for first in range(step):
            assert lengths.distance((3, first), (3, step)) == sum(first <= each < step for each in real)
    assert lengths.is_end((3, end)) == (told == len(batches))
    assert lengths.skip_voids((2, 7)) == (2, 7), "of other epochs nothing is known"


@given(SHARDS, SHARDS)
@tries(100)
def test_the_distance_to_a_later_epoch_counts_batches(first, second):
    second = (second * 5)[: len(first)]
    lengths = ShardLengths(len(first))
    for epoch, batches in ((0, first), (1, second)):
        for shard, count in enumerate(batches):
            lengths.learn_shard(epoch, shard, count)
    assert lengths.distance((0, 0), (2, 0)) == sum(first) + sum(second)
    end = lengths.steps(0)
    assert lengths.distance((0, end), (1, 0)) == 0


def test_whoever_passed_the_end_before_it_was_known_is_put_back():
    lengths = ShardLengths(2)
    lengths.learn_shard(0, 0, 0)
    assert lengths.skip_voids((0, 0)) == (0, 1)
    lengths.learn_shard(0, 1, 0)
    assert lengths.steps(0) == 0
    assert lengths.skip_voids((0, 1)) == (0, 0)


def test_a_shard_that_turns_out_shorter_is():
    lengths = ShardLengths(1)
    lengths.learn_shard(0, 0, 5)
    lengths.learn_shard(0, 0, 3)
    lengths.learn_shard(0, 0, 4)
    assert lengths.steps(0) == 3
    assert lengths.distance((0, 0), (1, 0)) == 3


def test_memory_is_bounded_and_the_past_can_be_learnt_again():
    lengths = ShardLengths(1)
    for epoch in range(KEPT_EPOCHS + 10):
        lengths.learn_shard(epoch, 0, 2)
    assert lengths.steps(0) is None
    assert lengths.steps(KEPT_EPOCHS + 9) == 2
    lengths.learn_shard(0, 0, 2)
    assert lengths.steps(0) == 2


def test_a_waiting_cursor_looks_only_so_far_for_an_epoch_that_has_any_batch():
    lengths = ShardLengths(1)
    cursor = new_cursor("c", "c", (0, 0), True, lengths)
    for epoch in range(MOST_EMPTY_EPOCHS):
        assert advance_fill(cursor, lengths, 4, lambda position: False) == (epoch, 0)
        lengths.learn_shard(epoch, 0, 0)
    assert advance_fill(cursor, lengths, 4, lambda position: False) is None
