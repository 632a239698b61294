"""The progress file's text: two numbers, however they are spaced, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefetchd.progress.two_lines import POSITION_LIMIT, parse, written

POSITIONS = st.tuples(st.integers(0, POSITION_LIMIT - 1), st.integers(0, POSITION_LIMIT - 1))


@given(POSITIONS)
def test_what_is_written_is_read(position):
    assert parse(written(position)) == (position, True)


@given(POSITIONS, st.integers(1, 40))
def test_what_is_cut_short_is_never_taken_for_complete(position, cut):
    whole = written(position)
    found = parse(whole[:-cut])
    assert isinstance(found, str) or found[1] is False


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"3\n45\n", ((3, 45), True)),
        (b"3\n45", ((3, 45), False)),
        (b"  3 \t\n\t45  \n", ((3, 45), True)),
        (b"3\r\n45\r\n", ((3, 45), True)),
        (b"3\n45\n\n  \n", ((3, 45), True)),
        (b"007\n00\n", ((7, 0), True)),
    ],
)
def test_spaces_and_ends_of_lines_may_differ(content, found):
    assert parse(content) == found


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"3", b"3\n", b"3 45\n", b"3\n45\n6\n", b"-1\n0\n", b"1.5\n0\n", b"epoch 3\n1\n", b"\xff\n\xfe\n"]
    + [b"1" * 300, b"9" * 19 + b"\n0\n", b"1\n" + b"0" * 400 + b"\n", b"\n3\n45\n", "٣\n٤\n".encode()],
)
def test_anything_else_is_told(content):
    assert isinstance(parse(content), str)
