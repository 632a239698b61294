"""Files in shared memory that have no name yet: copied whole, or not at all."""

from __future__ import annotations

import contextlib
import os

import pytest

from prefetchd.wire.own_segments import copy_unnamed, give_name, open_unnamed, random_token
from prefetchd.wire.runtime_paths import SHARED_MEMORY


@contextlib.contextmanager
def unnamed(content: bytes):
    fd = open_unnamed()
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 4096, 5_000_001])
def test_a_copy_has_all_of_the_file_and_can_be_given_a_name(size):
    content = os.urandom(size)
    name = f"/prefetchd-test-{random_token()}"
    with unnamed(content) as fd:
        copy = copy_unnamed(fd)
        try:
            give_name(copy, name)
            with open(SHARED_MEMORY + name, "rb") as file:
                assert file.read() == content
            assert os.fstat(copy).st_ino != os.fstat(fd).st_ino
            assert os.fstat(fd).st_nlink == 0, "the original is as it was"
        finally:
            os.close(copy)
            os.unlink(SHARED_MEMORY + name)


def test_a_file_that_becomes_shorter_meanwhile_is_an_error_and_leaves_nothing(monkeypatch):
    before = set(os.listdir("/proc/self/fd"))
    with unnamed(b"x" * 10_000) as fd:
        os_sendfile = os.sendfile

        def cut(*arguments):
            os.ftruncate(fd, 100)
            return os_sendfile(*arguments)

        monkeypatch.setattr(os, "sendfile", cut)
        with pytest.raises(OSError, match="9900 bytes shorter"):
            copy_unnamed(fd)
    assert set(os.listdir("/proc/self/fd")) <= before
