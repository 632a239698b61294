"""A lock that is a file: one holder at a time, free when the holder's process ends, gone when it is given up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from prefetchd.wire.lock_file import LockFile

HOLDS_IT = """
import sys
from pathlib import Path
from prefetchd.wire.lock_file import LockFile
lock = LockFile(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
lock.write_number(41)
print("written", flush=True)
sys.stdin.read()
lock.release()
"""

LONG_S = 60.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "d.lock"


@pytest.fixture
def lock(path):
    found = LockFile(path)
    yield found
    found.release()


@pytest.fixture
def holder(path):
    """Another process that holds the lock until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_IT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    assert process.stdout.readline() == "written\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_one_holder_at_a_time(lock, path):
    assert lock.acquire()
    other = LockFile(path)
    assert not other.acquire()
    assert not other.acquire(0.05)
    lock.release()
    assert other.acquire()
    other.release()


def test_the_file_is_private_and_gone_once_the_lock_is_given_up(lock, path):
    os.umask(before := os.umask(0))
    assert lock.acquire()
    assert path.stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(lock.fd)
    lock.release()
    assert not path.exists()
    assert lock.fd == -1
    lock.release()
    assert os.umask(before) == before


def test_a_failed_attempt_leaves_the_holder_s_file_and_no_descriptor(lock, path):
    assert lock.acquire()
    before = len(os.listdir("/proc/self/fd"))
    other = LockFile(path)
    assert not other.acquire()
    other.release()
    assert path.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_process_holds_it_until_it_gives_it_up(holder, lock):
    assert not lock.acquire()
    holder.stdin.close()
    assert lock.acquire(LONG_S)
    assert lock.read_number() == 0, "the file was removed in between"


def test_a_killed_holder_s_lock_is_free_and_its_number_is_kept(holder, lock, path):
    assert not lock.acquire()
    holder.send_signal(signal.SIGKILL)
    assert lock.acquire(LONG_S)
    assert lock.read_number() == 41
    lock.write_number(lock.read_number() + 1)
    assert path.read_text().strip() == "42"


def test_a_stopped_holder_keeps_it(holder, lock):
    holder.send_signal(signal.SIGSTOP)
    try:
        assert not lock.acquire(0.05)
    finally:
        holder.send_signal(signal.SIGCONT)


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(lock, path, monkeypatch):
    """Its last holder gives it up between our open and our lock: we must not take the file that nobody finds."""
    opened = os.open

    def open_and_lose_it(*arguments):
        fd = opened(*arguments)
        monkeypatch.setattr(os, "open", opened)
        path.unlink()
        return fd

    monkeypatch.setattr(os, "open", open_and_lose_it)
    assert lock.acquire()
    assert os.fstat(lock.fd).st_ino == path.stat().st_ino
    assert not LockFile(path).acquire()


def test_release_leaves_alone_what_another_holds_by_now(lock, path):
    assert lock.acquire()
    path.unlink()
    other = LockFile(path)
    assert other.acquire()
    lock.release()
    assert path.exists()
    assert not LockFile(path).acquire()
    other.release()


def test_waiters_get_it_one_after_another(lock, path):
    assert lock.acquire()
    holders, most, guard = [0], [0], threading.Lock()

    def wait_for_it():
        mine = LockFile(path)
        assert mine.acquire(LONG_S)
        with guard:
            holders[0] += 1
            most[0] = max(most[0], holders[0])
        with guard:
            holders[0] -= 1
        mine.release()

    threads = [threading.Thread(target=wait_for_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    lock.release()
    for thread in threads:
        thread.join(LONG_S)
    assert not any(thread.is_alive() for thread in threads)
    assert most == [1]
    assert not path.exists()


def test_a_number_that_is_none_is_zero(lock, path):
    path.write_text("garbage")
    assert lock.acquire()
    assert lock.read_number() == 0
    lock.write_number(7)
    assert lock.read_number() == 7
    lock.write_number(123456)
    assert lock.read_number() == 123456


# --- when somebody removes the file ---


def test_a_lock_whose_file_was_removed_is_held_no_more_and_can_be_taken_again(path, lock):
    assert not lock.is_held
    assert lock.acquire()
    assert lock.is_held
    path.unlink()
    assert not lock.is_held
    assert lock.restore()
    assert lock.is_held
    assert not LockFile(path).acquire()
    lock.release()
    assert not path.exists()


def test_a_lock_that_another_has_taken_meanwhile_is_not_restored(path, lock):
    assert lock.acquire()
    path.unlink()
    other = LockFile(path)
    assert other.acquire()
    assert not lock.restore()
    assert other.is_held
    lock.release()
    assert other.is_held, "what is another's stays"
    other.release()


def test_restoring_leaves_no_descriptor(path, lock):
    lock.acquire()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        path.unlink()
        assert lock.restore()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("text", ["9" * 31, "9" * 19, "-1", "1e3", "\u0661"])
def test_a_number_that_it_has_not_written_is_none(tmp_path, text):
    path = tmp_path / "lock"
    path.write_text(text)
    lock = LockFile(path)
    assert lock.acquire()
    try:
        assert lock.read_number() == 0
        lock.write_number((1 << 56) - 1)
        assert lock.read_number() == (1 << 56) - 1
    finally:
        lock.release()
