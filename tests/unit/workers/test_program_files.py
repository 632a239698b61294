"""Reopened files have positions of their own, under the same numbers, and are what they were in all else."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefetchd.workers import program_files
from prefetchd.workers.program_files import adopt_files, files_but, reopen_files


@pytest.fixture(autouse=True)
def no_files_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "_files", set())


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    (tmp_path / "digits").write_bytes(b"0123456789")
    return tmp_path / "digits"


def opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def reopened(fd: int) -> int:
    """Another descriptor of what `fd` was before it was reopened. The caller closes it."""
    former = os.dup(fd)
    adopt_files([fd])
    reopen_files()
    return former


def is_shared(fd: int, other: int) -> bool:
    """Whether a seek in one moves the other."""
    before = os.lseek(other, 0, os.SEEK_CUR)
    os.lseek(fd, before + 1, os.SEEK_SET)
    moved = os.lseek(other, 0, os.SEEK_CUR) != before
    os.lseek(fd, before, os.SEEK_SET)
    return moved


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND])
def test_reopened_file_is_where_it_was_and_moves_alone(digits, flags):
    for fd in opened(digits, flags):
        os.lseek(fd, 4, os.SEEK_SET)
        os.set_inheritable(fd, True)
        former = reopened(fd)
        assert os.lseek(fd, 0, os.SEEK_CUR) == 4
        assert not is_shared(fd, former)
        assert fcntl.fcntl(fd, fcntl.F_GETFL) == fcntl.fcntl(former, fcntl.F_GETFL)
        assert os.get_inheritable(fd)
        assert os.path.sameopenfile(fd, former)
        os.close(former)
    assert digits.read_bytes() == b"0123456789"


def test_deleted_file_and_file_in_memory_are_reopened(digits):
    for fd in opened(digits, os.O_RDONLY):
        digits.unlink()
        former = reopened(fd)
        assert not is_shared(fd, former)
        assert os.read(fd, 3) == b"012"
        os.close(former)
    memory = os.memfd_create("digits")
    os.write(memory, b"abc")
    former = reopened(memory)
    assert not is_shared(memory, former)
    assert os.pread(memory, 3, 0) == b"abc"
    os.close(former)
    os.close(memory)


def test_file_for_writing_stays_shared(digits):
    """Its writers append through one position."""
    for fd in opened(digits, os.O_WRONLY):
        former = reopened(fd)
        assert is_shared(fd, former)
        os.close(former)


def test_copies_of_a_descriptor_stay_copies(digits):
    for fd in opened(digits, os.O_RDONLY):
        copy, former = os.dup(fd), os.dup(fd)
        adopt_files([fd, copy])
        reopen_files()
        assert is_shared(fd, copy)
        assert not is_shared(fd, former)
        os.close(copy)
        os.close(former)


def test_two_openings_of_one_file_stay_apart(digits):
    for fd in opened(digits, os.O_RDONLY):
        for other in opened(digits, os.O_RDONLY):
            adopt_files([fd, other])
            reopen_files()
            assert not is_shared(fd, other)


def test_directory_is_reopened(tmp_path):
    for fd in opened(tmp_path, os.O_RDONLY | os.O_DIRECTORY):
        former = reopened(fd)
        assert os.path.sameopenfile(fd, former)
        assert stat.S_ISDIR(os.fstat(fd).st_mode)
        os.close(former)


def test_lock_stays_with_the_former_description(digits):
    """A worker that outlives its trainer must not keep the trainer's lock."""
    for fd in opened(digits, os.O_RDONLY):
        fcntl.flock(fd, fcntl.LOCK_EX)
        former = reopened(fd)
        for other in opened(digits, os.O_RDONLY):
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(former)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_file_that_cannot_be_reopened_is_named_and_stays(digits, monkeypatch, capfd):
    real = os.open

    def refuse(path, *arguments):
        if str(path).startswith("/proc/self/fd/"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments)

    for fd in opened(digits, os.O_RDONLY):
        monkeypatch.setattr(os, "open", refuse)
        former = reopened(fd)
        monkeypatch.undo()
        assert is_shared(fd, former)
        os.close(former)
    told = capfd.readouterr().err
    assert f"{digits} cannot be opened a second time (Permission denied)" in told


def test_closed_descriptor_is_forgotten(digits):
    for fd in opened(digits, os.O_RDONLY):
        copy = os.dup(fd)
        adopt_files([copy])
    os.close(copy)
    reopen_files()


def test_files_are_regular_files_and_directories_that_can_be_read(digits, tmp_path):
    into, out = os.pipe()
    for read in opened(digits, os.O_RDONLY):
        for written in opened(digits, os.O_WRONLY):
            for directory in opened(tmp_path, os.O_RDONLY):
                found = files_but([])
                assert {read, directory} <= found
                assert not {written, into, out, 0, 1, 2} & found
                assert read not in files_but([read])
    os.close(into)
    os.close(out)
