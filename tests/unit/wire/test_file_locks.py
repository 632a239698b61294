"""Locks that end with their last descriptor, however its process ends: real descriptions, real processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prefetchd.wire.file_locks import is_locked, reopen, try_lock, unlock
from prefetchd.wire.segment_layout import CONSUMER_LOCK_OFFSET, DAEMON_LOCK_OFFSET, WRITERS_LOCK_OFFSET

ROOT = Path(__file__).parents[3]
OFFSETS = [0, 1, DAEMON_LOCK_OFFSET, CONSUMER_LOCK_OFFSET + 3, WRITERS_LOCK_OFFSET]

LOCKS_A_FILE = """
import os, sys
from prefetchd.wire.file_locks import try_lock
path, offset, shared = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shared"
print(try_lock(os.open(path, os.O_RDWR), offset, shared=shared), flush=True)
sys.stdin.read()
"""
KEEPS_WHAT_IT_INHERITED = """
import sys
print("here", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "segment").write_bytes(b"\0" * 100)
    return tmp_path / "segment"


@pytest.fixture
def descriptions(path):
    """Two descriptions of one file, as two open(2) made them."""
    fds = [os.open(path, os.O_RDWR) for _ in range(2)]
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.fixture
def child():
    """Starts a Python process, waits for its first line, and gives (process, line). Kills what is left."""
    children: list[subprocess.Popen] = []

    def start(code: str, *args: object, pass_fds: tuple[int, ...] = ()) -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
            cwd=ROOT,
        )
        children.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in children:
        process.kill()
        process.communicate()


def kill(process: subprocess.Popen) -> None:
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


# --- within one process ---


@pytest.mark.parametrize("offset", OFFSETS)
def test_an_exclusive_lock_keeps_every_other_description_out(descriptions, offset):
    first, second = descriptions
    assert try_lock(first, offset)
    assert not try_lock(second, offset)
    assert not try_lock(second, offset, shared=True)
    assert is_locked(second, offset)
    unlock(first, offset)
    assert not is_locked(second, offset)
    assert try_lock(second, offset)


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_shared_lock_lets_other_shared_ones_in_only(descriptions, offset):
    first, second = descriptions
    assert try_lock(first, offset, shared=True)
    assert try_lock(second, offset, shared=True)
    assert not try_lock(second, offset)
    assert is_locked(second, offset)
    unlock(first, offset)
    assert try_lock(second, offset)


def test_a_description_s_own_lock_is_no_hindrance_to_itself(descriptions):
    first, second = descriptions
    assert try_lock(first, 5)
    assert try_lock(first, 5)
    assert not is_locked(first, 5)
    assert try_lock(first, 5, shared=True), "it may be weakened"
    assert try_lock(second, 5, shared=True)
    assert not try_lock(first, 5), "and not be strengthened beside others"


def test_one_byte_is_locked_and_no_other(descriptions):
    first, second = descriptions
    assert try_lock(first, 10)
    assert [offset for offset in range(20) if is_locked(second, offset)] == [10]
    assert try_lock(second, 9)
    assert try_lock(second, 11)


def test_any_of_many_bytes_may_be_asked_for_at_once(descriptions):
    first, second = descriptions
    assert try_lock(first, 10, shared=True)
    assert is_locked(second, 0, 11)
    assert is_locked(second, 10, 5)
    assert not is_locked(second, 0, 10)
    assert not is_locked(second, 11, 100)


def test_asking_takes_no_lock(descriptions):
    first, second = descriptions
    assert not is_locked(first, 3)
    assert try_lock(second, 3)


def test_unlocking_what_is_not_held_changes_nothing(descriptions):
    first, second = descriptions
    assert try_lock(first, 3)
    unlock(second, 3)
    assert is_locked(second, 3)


def test_the_lock_ends_with_the_description_s_last_descriptor(path):
    held = os.open(path, os.O_RDWR)
    other = os.open(path, os.O_RDWR)
    assert try_lock(held, 0)
    duplicate = os.dup(held)
    os.close(held)
    assert is_locked(other, 0), "the duplicate is of the same description"
    os.close(duplicate)
    assert not is_locked(other, 0)
    os.close(other)


def test_closing_another_description_of_the_file_ends_no_lock(descriptions, path):
    """As it would with the older POSIX locks."""
    first, second = descriptions
    assert try_lock(first, 0)
    os.close(os.open(path, os.O_RDWR))
    assert is_locked(second, 0)


def test_the_locks_offsets_need_no_content(descriptions, path):
    assert all(try_lock(descriptions[0], offset) for offset in OFFSETS)
    assert path.stat().st_size == 100


# --- across processes ---


@pytest.mark.parametrize("shared", ["shared", "exclusive"])
def test_a_lock_ends_when_its_process_is_killed(descriptions, path, child, shared):
    process, got = child(LOCKS_A_FILE, path, DAEMON_LOCK_OFFSET, shared)
    assert got == "True"
    assert is_locked(descriptions[0], DAEMON_LOCK_OFFSET)
    assert not try_lock(descriptions[0], DAEMON_LOCK_OFFSET)
    kill(process)
    assert not is_locked(descriptions[0], DAEMON_LOCK_OFFSET)
    assert try_lock(descriptions[0], DAEMON_LOCK_OFFSET)


def test_another_process_is_kept_out(descriptions, path, child):
    assert try_lock(descriptions[0], 7)
    assert child(LOCKS_A_FILE, path, 7, "exclusive")[1] == "False"
    assert child(LOCKS_A_FILE, path, 8, "exclusive")[1] == "True"


def test_shared_locks_of_two_processes_end_one_by_one(descriptions, path, child):
    first, got_first = child(LOCKS_A_FILE, path, 7, "shared")
    second, got_second = child(LOCKS_A_FILE, path, 7, "shared")
    assert (got_first, got_second) == ("True", "True")
    kill(first)
    assert is_locked(descriptions[0], 7)
    kill(second)
    assert not is_locked(descriptions[0], 7)


def test_an_inherited_description_keeps_the_lock_until_its_last_process_ends(path, child):
    held = os.open(path, os.O_RDWR)
    other = os.open(path, os.O_RDWR)
    assert try_lock(held, WRITERS_LOCK_OFFSET, shared=True)
    process, _ = child(KEEPS_WHAT_IT_INHERITED, pass_fds=(held,))
    os.close(held)
    assert is_locked(other, WRITERS_LOCK_OFFSET), "the child's descriptor is of the same description"
    kill(process)
    assert not is_locked(other, WRITERS_LOCK_OFFSET)
    os.close(other)


def test_a_lock_outlives_a_process_that_only_inherited_it(descriptions, child):
    first, second = descriptions
    assert try_lock(first, 0)
    process, _ = child(KEEPS_WHAT_IT_INHERITED, pass_fds=(first,))
    kill(process)
    assert is_locked(second, 0)


def test_a_process_that_inherits_nothing_keeps_nothing(path, child):
    held = os.open(path, os.O_RDWR)
    other = os.open(path, os.O_RDWR)
    assert try_lock(held, 0)
    child(KEEPS_WHAT_IT_INHERITED)
    os.close(held)
    assert not is_locked(other, 0)
    os.close(other)


# --- reopen ---


def test_a_reopened_file_is_a_description_of_its_own(descriptions):
    first, second = descriptions
    again = reopen(first)
    assert try_lock(again, 0)
    assert not try_lock(first, 0)
    os.close(again)
    assert not is_locked(second, 0)


def test_reopening_works_when_the_name_is_gone(path):
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    again = reopen(fd)
    assert try_lock(again, DAEMON_LOCK_OFFSET)
    assert is_locked(fd, DAEMON_LOCK_OFFSET)
    os.pwrite(again, b"seen", 0)
    assert os.pread(fd, 4, 0) == b"seen"
    os.close(again)
    os.close(fd)


def test_reopening_works_for_memory_without_a_name():
    fd = os.memfd_create("segment")
    again = reopen(fd)
    assert try_lock(again, 0)
    assert is_locked(fd, 0)
    os.close(again)
    os.close(fd)


def test_a_reopened_description_is_closed_on_exec(descriptions):
    again = reopen(descriptions[0])
    assert fcntl.fcntl(again, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(again)
