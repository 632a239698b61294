"""Live state is found by what memory it is in and what it is for, and nothing else is taken for it."""

from __future__ import annotations

import io
import mmap
import multiprocessing as mp
import os
import threading
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prefetchd_client.fingerprint.live_state import FileStamp, LiveSearch, check_for, shared_mappings


def found(value: Any) -> tuple[str, dict[str | int, FileStamp]]:
    """What the value is called, and the files that were noted."""
    search = LiveSearch()
    check = check_for(type(value))
    if check is None or not search.is_live(check, value):
        return "", search.files
    return search.found[0][1], search.files


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    np.arange(1000).tofile(tmp_path / "numbers")
    return tmp_path / "numbers"


LIVE = {
    "value": (lambda: mp.Value("i", 0), "a shared value"),
    "value without a lock": (lambda: mp.RawValue("i", 0), "a shared value"),
    "array": (lambda: mp.Array("d", 4), "a shared value"),
    "array that numpy looks at": (lambda: np.frombuffer(mp.Array("d", 4).get_obj()), "a shared array"),
    "part of that": (lambda: np.frombuffer(mp.Array("d", 4).get_obj())[2:], "a shared array"),
    "tensor": (lambda: torch.zeros(3).share_memory_(), "a shared tensor"),
    "part of a tensor": (lambda: torch.zeros(3, 3).share_memory_()[1], "a shared tensor"),
    "tensor over shared memory": (lambda: torch.from_numpy(np.frombuffer(mp.RawArray("d", 4))), "a shared tensor"),
    "event": (mp.Event, "an event that processes share"),
    "queue": (mp.Queue, "a queue between processes"),
    "simple queue": (mp.SimpleQueue, "a queue between processes"),
    "pipe": (lambda: mp.Pipe()[0], "a pipe"),
    "mapping": (lambda: mmap.mmap(-1, 4096), "a memory mapping"),
}


@pytest.mark.parametrize(("make", "name"), LIVE.values(), ids=LIVE)
def test_live_state_is_named(make, name):
    assert found(make())[0] == name


QUIET = {
    "lock": mp.Lock,
    "lock of a thread": threading.Lock,
    "array": lambda: np.zeros(3),
    "part of an array": lambda: np.zeros(30)[3:],
    "array over bytes": lambda: np.frombuffer(b"abc", np.uint8),
    "tensor": lambda: torch.zeros(3),
    "tensor over an array": lambda: torch.from_numpy(np.zeros(3)),
    "empty tensor": lambda: torch.zeros(0),
    "sparse tensor": lambda: torch.zeros(3).to_sparse(),
    "meta tensor": lambda: torch.zeros(3, device="meta"),
    "text in memory": lambda: io.StringIO("a"),
    "list": lambda: [1, 2],
}


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_ordinary_objects_are_not_live(make):
    assert found(make()) == ("", {})


def test_shared_memory_block_and_its_array_are_live():
    block = shared_memory.SharedMemory(create=True, size=100)
    try:
        array = np.ndarray(10, np.uint8, block.buf)
        assert found(block)[0] == "shared memory"
        assert found(array)[0].startswith("a shared array")
        del array
    finally:
        block.close()
        block.unlink()
        # The process that watches over shared memory for Python.
        resource_tracker._resource_tracker._stop()


def test_object_of_a_manager_is_live():
    with mp.Manager() as manager:
        assert found(manager.dict())[0] == "an object of a manager"


def test_memmap_for_writing_is_live_and_for_reading_a_file(numbers):
    assert found(np.memmap(numbers, np.int64, mode="r+"))[0] == "a shared array in a mapped file"
    name, files = found(np.memmap(numbers, np.int64, mode="r"))
    assert (name, list(files)) == ("", [str(numbers)])


def test_memmap_for_reading_is_live_beside_one_for_writing(numbers):
    """The loop may write through the other one, and the time of change need not tell."""
    read, written = np.memmap(numbers, np.int64, mode="r"), np.memmap(numbers, np.int64, mode="r+")
    assert found(read)[0] == "a shared array in a mapped file"
    del written
    assert found(read)[0] == ""


def test_private_memmap_is_watched_as_a_file(numbers):
    name, files = found(np.memmap(numbers, np.int64, mode="c"))
    assert (name, list(files)) == ("", [str(numbers)])


OPENED = {"rb": False, "r": False, "r+b": True, "wb": None, "ab": None, "a+b": True}
"""By mode: whether the file is live; None: neither live nor watched."""


@pytest.mark.parametrize("mode", OPENED)
def test_file_that_can_be_read_and_written_is_live(numbers, mode):
    with open(numbers, mode) as file:
        name, files = found(file)
        assert bool(name) is bool(OPENED[mode])
        assert list(files) == ([file.fileno()] if OPENED[mode] is False else [])


def test_closed_file_is_nothing(numbers):
    with open(numbers, "rb") as file:
        pass
    assert found(file) == ("", {})


@pytest.fixture
def no_pagemap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not say which pages are shared."""
    real = os.pread
    monkeypatch.setattr(
        os, "pread", lambda fd, n, at: (_ for _ in ()).throw(PermissionError()) if n == 8 else real(fd, n, at)
    )


@pytest.mark.usefixtures("no_pagemap")
def test_mappings_alone_tell_shared_memory():
    assert found(torch.zeros(3).share_memory_())[0] == "a shared tensor"
    assert found(torch.zeros(3))[0] == ""


def test_shared_mappings_are_in_order_and_have_their_files(numbers):
    mapped = np.memmap(numbers, np.int64, mode="r")
    mappings = shared_mappings()
    assert mappings == sorted(mappings)
    (mine,) = [each for each in mappings if each.path == str(numbers)]
    assert not mine.is_writable
    assert mine.begin <= mapped.__array_interface__["data"][0] < mine.end
    assert mine.file[1] == numbers.stat().st_ino
