"""Which reads count: complete ones ahead at once, others when they stay, and the last good position always stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefetchd.progress.settling import SETTLE_S, Settling
from prefetchd.progress.two_lines import parse, written

POSITIONS = st.tuples(st.integers(0, 5), st.integers(0, 9999))
# What a reader may see of a file at any moment: nothing, some of a text, all of it, or rubbish.
CONTENTS = st.one_of(
    st.none(),
    st.just(b""),
    st.binary(max_size=6),
    POSITIONS.map(written),
    st.tuples(POSITIONS, st.integers(1, 5)).map(lambda each: written(each[0])[: -each[1]]),
)


def at(position=None):
    """A file that has been read at `position`."""
    settling = Settling()
    if position is not None:
        assert settling.read(written(position), 0.0) == position
    return settling


def test_the_first_position_counts_at_once():
    assert at().read(b"2\n7\n", 0.0) == (2, 7)


def test_forward_moves_count_at_once():
    settling = at((1, 200))
    assert settling.read(b"1\n400\n", 1.0) == (1, 400)
    assert settling.read(b"2\n0\n", 1.0) == (2, 0)
    assert not settling.look_again


def test_a_backward_move_counts_after_two_equal_reads():
    settling = at((1, 200))
    assert settling.read(b"0\n10\n", 1.0) is None
    assert settling.look_again
    assert settling.read(b"0\n10\n", 1.0 + SETTLE_S / 2) is None
    assert settling.read(b"0\n10\n", 1.0 + SETTLE_S) == (0, 10)
    assert not settling.look_again


def test_the_beginning_of_a_number_is_not_taken_for_it():
    settling = at((0, 44))
    assert settling.read(b"0\n45", 1.0) is None
    assert settling.read(b"0\n4567", 1.04) is None
    assert settling.read(b"0\n4567\n", 1.06) == (0, 4567)


def test_a_line_without_its_end_counts_when_it_stays():
    settling = at()
    assert settling.read(b"0\n45", 1.0) is None
    assert settling.read(b"0\n45", 1.06) == (0, 45)
    # Its end changes nothing.
    assert settling.read(b"0\n45\n", 2.0) is None


def test_what_cannot_be_read_keeps_the_position_and_is_counted_once():
    settling = at((3, 3))
    for now_s in (1.0, 1.06, 1.12, 9.0):
        assert settling.read(b"rubbish", now_s) is None
    assert settling.position == (3, 3)
    assert settling.unreadable == 1
    assert "rubbish" in settling.complaint
    assert settling.read(b"3\n4\n", 10.0) == (3, 4)
    assert settling.complaint == ""
    assert settling.unreadable == 1


def test_what_is_half_written_only_for_a_moment_is_no_mistake():
    settling = at((3, 3))
    settling.read(b"", 1.0)
    settling.read(b"3\n", 1.01)
    assert settling.read(b"3\n9\n", 1.02) == (3, 9)
    assert settling.unreadable == 0


def test_a_file_that_is_deleted_keeps_the_position():
    settling = at((3, 3))
    assert settling.read(None, 1.0) is None
    assert settling.position == (3, 3)
    assert settling.unreadable == 0
    assert settling.read(b"3\n3\n", 2.0) is None
    assert settling.read(b"3\n5\n", 2.0) == (3, 5)


def test_a_position_beyond_the_plan_is_a_mistake():
    settling = Settling(lambda position: position if position[1] < 10 else "an epoch has 10 batches")
    assert settling.read(b"0\n10\n", 0.0) is None
    assert settling.read(b"0\n10\n", 0.06) is None
    assert settling.complaint == "an epoch has 10 batches"
    assert settling.read(b"0\n9\n", 1.0) == (0, 9)


@given(st.lists(st.tuples(CONTENTS, st.floats(0, 0.1))))
def test_only_what_was_read_is_believed_and_the_last_that_stays_always_is(reads):
    settling, now_s, seen = Settling(), 0.0, []
    for content, pause_s in reads:
        now_s += pause_s
        before = settling.position
        went = settling.read(content, now_s)
        seen.append(content)
        assert settling.position == (before if went is None else went)
        if went is not None:
            position, complete = parse(content)
            assert went == position != before
            ahead = before is None or position > before
            # At once only when there is nothing to doubt; else it was there before.
            assert (complete and ahead) or seen.count(content) > 1
    if reads and seen[-1] is not None:
        settling.read(seen[-1], now_s)
        settling.read(seen[-1], now_s + SETTLE_S * 1.01)
        found = parse(seen[-1])
        assert not settling.look_again
        if not isinstance(found, str):
            assert settling.position == found[0]
            assert not settling.complaint
