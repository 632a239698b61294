"""Files that user code opens for reading are remembered as they are then, and compared later."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from prefetchd.wire.messages import TOO_MANY_FILES
from prefetchd.workers import opened_files
from prefetchd.workers.opened_files import OpenedFiles, changed_file


@pytest.fixture
def watched() -> Iterator[OpenedFiles]:
    """The hook stays in this process, and has nobody to report to afterwards."""
    found = OpenedFiles()
    found.watch()
    yield found
    opened_files._current = None


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    path.write_text("1")
    return path


READS = {
    "open": lambda path: open(path).close(),
    "path": lambda path: path.read_bytes(),
    "os.open": lambda path: os.close(os.open(path, os.O_RDONLY)),
    "bytes": lambda path: open(os.fsencode(path)).close(),
    "for both": lambda path: open(path, "r+b").close(),
    "numpy": lambda path: np.fromfile(path, np.uint8),
    "memmap": lambda path: np.memmap(path, np.uint8, mode="r"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_file_that_is_read_is_remembered(watched, data, read):
    read(data)
    opened = watched.take()
    assert changed_file(opened) is None
    data.write_text("22")
    assert changed_file(opened) == str(data)


def test_relative_path_is_the_file_of_its_directory(watched, data, monkeypatch):
    monkeypatch.chdir(data.parent)
    open("data").close()
    opened = watched.take()
    monkeypatch.chdir("/")
    assert changed_file(opened) is None


def test_removed_and_replaced_files_have_changed(watched, data):
    data.read_text()
    opened = watched.take()
    status = data.stat()
    (data.parent / "new").write_text("2")
    os.utime(data.parent / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(data.parent / "new", data)
    assert changed_file(opened) == str(data), "of the same size and time"
    data.unlink()
    assert changed_file(opened) == str(data)


def test_file_that_is_rewritten_while_it_is_read_has_changed(watched, data):
    data.read_text()
    data.write_text("22")
    data.read_text()
    assert changed_file(watched.take()) == str(data), "the first look counts"


def test_taken_files_are_not_taken_again(watched, data):
    data.read_text()
    assert watched.take()
    assert watched.take() == b""


def test_answers_in_a_row_are_checked_together(watched, data):
    data.read_text()
    first = watched.take()
    other = data.parent / "other"
    other.write_text("1")
    other.read_text()
    both = first + watched.take()
    assert changed_file(both) is None
    other.write_text("22")
    assert changed_file(both) == str(other)


OTHERS = {
    "written": lambda path: open(path, "w").close(),
    "missing": lambda path: os.path.exists(path) and not os.path.exists(f"{path}.gone"),
    "of the system": lambda path: open("/proc/self/stat").close(),
    "of Python": lambda path: open(os.__file__).close(),
    "descriptor": lambda path: os.fdopen(os.dup(0)).close(),
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_other_files_are_not_remembered(watched, data, use):
    use(data)
    assert watched.take() == b""


def test_missing_file_is_not_remembered(watched, tmp_path):
    with pytest.raises(FileNotFoundError):
        (tmp_path / "none").read_text()
    assert watched.take() == b""


def test_many_files_take_little_room(watched, tmp_path):
    paths = [tmp_path / f"picture-{number:05}.jpg" for number in range(1000)]
    for path in paths:
        path.write_bytes(b"")
        path.read_bytes()
    opened = watched.take()
    assert len(opened) < 30 * len(paths)
    assert changed_file(opened) is None
    paths[-1].write_text("1")
    assert changed_file(opened) == str(paths[-1])


def test_too_many_files_are_not_named(watched, tmp_path, monkeypatch):
    monkeypatch.setattr(opened_files, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("")
        (tmp_path / str(number)).read_text()
    assert watched.take() == TOO_MANY_FILES


def test_one_hook_serves_all(watched):
    """A hook cannot be taken out again."""
    hooks = []
    real, sys.addaudithook = sys.addaudithook, hooks.append
    try:
        OpenedFiles().watch()
    finally:
        sys.addaudithook = real
    assert hooks == []


def test_files_set_aside_are_of_the_work_they_were_read_for(watched, data, tmp_path):
    other = tmp_path / "other"
    other.write_text("1")
    data.read_bytes()
    watched.set_aside((1, 0))
    other.read_bytes()
    between = watched.take((0, 1))
    opened = watched.take((1, 0))
    data.write_text("22")
    assert changed_file(between) is None
    assert changed_file(opened) == str(data)
    assert watched.take((1, 0)) == b""


def test_first_look_counts_for_files_set_aside(watched, data):
    data.read_bytes()
    watched.set_aside((1, 0))
    data.write_text("22")
    data.read_bytes()
    watched.set_aside((1, 0))
    data.read_bytes()
    assert changed_file(watched.take((1, 0))) == str(data)
