"""Sample caches are removed whole, and nobody's who lives."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

from prefetchd.wire.cache_directory import DESCRIPTION, FINGERPRINT_LETTERS, MAKER_LOCK_OFFSET, MARKS
from prefetchd.wire.cache_removal import remove_cache, remove_leftovers, unused_name
from prefetchd.wire.file_locks import try_lock

NAME = "a" * FINGERPRINT_LETTERS


def laid_out(directory):
    directory.mkdir()
    for name in (MARKS, DESCRIPTION):
        (directory / name).touch()
    return directory


@pytest.mark.parametrize("what", ["new", "old"])
def test_what_the_dead_have_left_is_removed_and_nothing_else(what, tmp_path):
    cache = laid_out(tmp_path / NAME)
    others = laid_out(tmp_path / "mine.new-1")
    laid_out(unused_name(cache, what))
    unused_name(cache, what).mkdir()
    assert remove_leftovers(tmp_path) == 2
    assert sorted(tmp_path.iterdir()) == [cache, others]


def test_one_that_is_being_made_stays(tmp_path):
    unfinished = laid_out(unused_name(tmp_path / NAME, "new"))
    fd = os.open(unfinished / MARKS, os.O_RDWR)
    assert try_lock(fd, MAKER_LOCK_OFFSET)
    assert remove_leftovers(tmp_path) == 0
    assert sorted(each.name for each in unfinished.iterdir()) == [DESCRIPTION, MARKS]
    os.close(fd)
    assert remove_leftovers(tmp_path) == 1


def test_one_that_appears_while_leftovers_are_removed_is_whole(tmp_path, monkeypatch):
    unfinished = laid_out(unused_name(tmp_path / NAME, "new"))

    def slowly(directory, **options):
        inside = os.open(directory, os.O_DIRECTORY)
        with contextlib.suppress(FileNotFoundError):
            unfinished.rename(tmp_path / NAME)
        for name in os.listdir(inside):
            os.unlink(name, dir_fd=inside)
        os.close(inside)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(directory)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    assert remove_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_removed_whole_is_told(tmp_path, monkeypatch):
    cache = laid_out(tmp_path / NAME)
    monkeypatch.setattr(shutil, "rmtree", lambda directory, **options: None)
    with pytest.raises(OSError, match="cannot be removed whole"):
        remove_cache(cache)
    assert not cache.exists()
