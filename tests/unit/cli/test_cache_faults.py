"""prefetchd cache rm and verify beside processes that are at the same cache, and where files cannot be removed."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from prefetchd.cli import cache as verbs
from prefetchd.cli.cache import command
from prefetchd.cli.cache_check import check_rows, count_rows
from prefetchd.wire.cache_directory import (
    DESCRIPTION,
    MARK,
    MARKS,
    MARKS_LOCK_OFFSET,
    ROW_LOCK_OFFSET,
    SAMPLES,
    CacheDescription,
    LeafFile,
    encode_description,
    row_digest,
)
from prefetchd.wire.file_locks import try_lock, unlock

ROWS = 4


def laid_out(directory, damaged=()):
    """A cache of four rows of a byte each."""
    leaf = LeafFile("0.memmap", "uint8", (1,), 1)
    description = CacheDescription(directory.name, "Bytes", ROWS, ROWS, (leaf,), None)
    (directory / SAMPLES).mkdir(parents=True)
    rows = [bytes([row]) for row in range(ROWS)]
    (directory / MARKS).write_bytes(b"".join(MARK.pack(row_digest(iter([row]))) for row in rows))
    (directory / SAMPLES / leaf.file).write_bytes(
        b"".join(b"\xff" if k in damaged else row for k, row in enumerate(rows))
    )
    (directory / DESCRIPTION).write_text(encode_description(description))
    return directory, description


@pytest.fixture
def cache(tmp_path):
    return laid_out(tmp_path / ("a" * 32), damaged=(1, 2))


@pytest.fixture
def another(cache):
    """The marks as another process has them open."""
    fd = os.open(cache[0] / MARKS, os.O_RDWR)
    yield fd
    os.close(fd)


def run(*arguments):
    return CliRunner().invoke(command, [str(each) for each in arguments])


# --- rm ---


def test_a_cache_that_is_named_twice_is_removed_once(cache, tmp_path):
    done = run("rm", tmp_path, "aa", "a" * 32)
    assert done.exit_code == 0
    assert done.output.count("removed") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_told(cache, tmp_path, monkeypatch):
    def refused(directory):
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr(verbs, "remove_cache", refused)
    done = run("rm", tmp_path, "aa")
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert "Permission denied" in done.output


# --- verify ---


def test_samples_that_are_being_stored_are_not_forgotten_and_that_is_told(cache, another, tmp_path):
    assert try_lock(another, ROW_LOCK_OFFSET + 2)
    done = run("verify", tmp_path, "--fix")
    assert done.exit_code == 1
    assert "3 samples stored  2 damaged: 1, 2; 1 forgotten" in done.output
    unlock(another, ROW_LOCK_OFFSET + 2)
    assert "1 damaged: 2; 1 forgotten" in run("verify", tmp_path, "--fix").output
    assert run("verify", tmp_path).exit_code == 0


def test_without_fix_nothing_is_forgotten(cache, tmp_path):
    assert run("verify", tmp_path).output.rstrip().endswith("4 samples stored  2 damaged: 1, 2")
    assert check_rows(*cache, fix=False) == ([1, 2], [])
    assert count_rows(*cache) == ROWS


def test_marks_are_read_when_nobody_writes_them(cache, another, monkeypatch):
    assert try_lock(another, MARKS_LOCK_OFFSET)
    waited = []

    def written():
        waited.append(None)
        os.pwrite(another, MARK.pack(0), 0)
        unlock(another, MARKS_LOCK_OFFSET)

    monkeypatch.setattr(os, "sched_yield", written)
    assert count_rows(*cache) == ROWS - 1
    assert len(waited) == 1


def test_marks_that_stay_locked_are_told(cache, another, tmp_path):
    assert try_lock(another, MARKS_LOCK_OFFSET)
    for verb in ("ls", "verify"):
        assert "locked by a process that has been stopped" in run(verb, tmp_path).output


def test_marks_are_forgotten_when_nobody_reads_them(cache, another):
    assert try_lock(another, MARKS_LOCK_OFFSET, shared=True)
    assert check_rows(*cache, fix=True) == ([1, 2], [])
    unlock(another, MARKS_LOCK_OFFSET)
    assert check_rows(*cache, fix=True) == ([1, 2], [1, 2])
    assert count_rows(*cache) == ROWS - 2


def test_a_row_that_was_stored_anew_meanwhile_is_not_forgotten(cache, another, monkeypatch):
    from prefetchd.cli import cache_check

    def stored_anew(fd, offset, **options):
        os.pwrite(another, MARK.pack(7), MARK.size)
        return try_lock(fd, offset, **options)

    monkeypatch.setattr(cache_check, "try_lock", stored_anew)
    assert check_rows(*cache, fix=True) == ([1, 2], [2])
