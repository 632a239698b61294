"""What is reclaimed of trainers that died before they handed their program over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefetchd.daemon.segments.recovery import empty_programs, reclaim_programs
from prefetchd.wire.file_locks import try_lock
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET


@pytest.fixture
def paths(tmp_path):
    return runtime_paths(tmp_path / "d.sock")


@pytest.fixture
def made(paths):
    """Makes a program of this size that was last written to at `unix_s`."""
    found = []

    def make(token, size=0, unix_s=0.0):
        path = Path("/dev/shm" + paths.segment_name("program", token))
        path.write_bytes(bytes(size))
        os.utime(path, (unix_s, unix_s))
        found.append(path)
        return path

    yield make
    for path in found:
        path.unlink(missing_ok=True)


def test_an_empty_one_that_was_there_before_goes_and_a_new_one_stays(paths, made):
    old = made("old")
    known = empty_programs(paths)
    new = made("new")
    reclaim_programs(paths, empty=known)
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("unix_s", [0.0, 4e9], ids=["long ago", "in the future"])
def test_the_clock_does_not_count(paths, made, unix_s):
    """It may have been set since the file was made."""
    old = made("old", unix_s=unix_s)
    known = empty_programs(paths)
    new = made("new", unix_s=unix_s)
    reclaim_programs(paths, empty=known)
    assert [old.exists(), new.exists()] == [False, True]
    reclaim_programs(paths)
    assert not new.exists(), "when nobody may come any more"


def test_what_has_content_and_no_owner_goes_and_what_is_locked_stays(paths, made):
    orphan, owned = made("orphan", 10), made("owned", 10)
    assert empty_programs(paths) == frozenset()
    with owned.open("rb+") as file:
        assert try_lock(file.fileno(), DAEMON_LOCK_OFFSET, shared=True)
        reclaim_programs(paths)
        assert owned.exists()
        assert not orphan.exists()
