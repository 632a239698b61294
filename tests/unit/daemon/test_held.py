"""What an operator has set goes to the next daemon in the lock's file."""

from __future__ import annotations

import pytest

from prefetchd.daemon.held import NOTHING_HELD, Held, decode_held, encode_held
from prefetchd.wire.lock_file import LockFile


def test_the_next_holder_reads_it_once(tmp_path):
    lock = LockFile(tmp_path / "lock")
    assert lock.acquire()
    lock.write_number(7)
    held = Held({"a": False, "b": True}, "debug")
    lock.write_note(encode_held(held))
    lock.keep_file()
    lock.release()
    for expected in (held, NOTHING_HELD):
        following = LockFile(tmp_path / "lock")
        assert following.acquire()
        assert following.read_number() == 7
        assert decode_held(following.take_note()) == expected
        following.leave()


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"[]", b"1", b'{"streams": 3, "log_level": ""}', b'{"streams": {}}', b"\xff\xfe"],
)
def test_what_it_has_not_written_is_nothing(data):
    assert decode_held(data) == NOTHING_HELD


def test_a_level_that_is_none_is_left_out():
    assert decode_held(b'{"streams": {"s": 1}, "log_level": "loud"}') == Held({"s": True})
