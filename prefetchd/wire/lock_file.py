"""Implements a lock that is a file: whoever holds it is alive, and it leaves nothing behind when it is given up in
order."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

from prefetchd.wire.errors import UntrustedPathError
from prefetchd.wire.trusted_paths import is_trusted_file

_POLL_S = 0.02
NUMBER_DIGITS = 18
"""The most digits of a number in the file: it goes into 64 bits elsewhere."""
NOTE_OFFSET = 32
NOTE_LIMIT_BYTES = 1 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LockFile:
    """An exclusive flock(2) on `path`, held until release() or the process's end. The file is ours, under one name: a
    link, or what somebody else has made there, is never opened to be written to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._keeps_file = False

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Takes the lock. Returns True once it is held; False when somebody else still has it after `timeout_s`. Raises
        UntrustedPathError when the file is not ours, and OSError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            fd = self._open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(_POLL_S)
                continue
            if self._is_current(fd):
                self._fd = fd
                return True
            # Its last holder removed the file between our open and our lock: it locks nothing any more.
            os.close(fd)

    def holder(self) -> int | None:
        """Returns the process that holds the lock; 0 where the kernel does not say which, None where none does. Creates
        nothing. Raises OSError for a file that cannot be read."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder_of(os.fstat(fd))
        finally:
            os.close(fd)
        return None

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def is_held(self) -> bool:
        """False when somebody has removed or replaced the file: then it locks nothing any more."""
        return self._fd >= 0 and self._is_current(self._fd)

    def restore(self) -> bool:
        """Takes the lock again after its file was removed; False when somebody else has it by now."""
        former, self._fd = self._fd, -1
        try:
            restored = self.acquire()
        finally:
            if self._fd < 0:
                self._fd = former
        if restored and former >= 0:
            os.close(former)
        return restored

    def keep_file(self) -> None:
        """Lets release() leave the file from now on, with the number in it."""
        self._keeps_file = True

    def release(self) -> None:
        """Removes the file and gives the lock up, in this order. Idempotent."""
        if self._keeps_file:
            self.leave()
        if self._fd >= 0:
            # Unlinked while the lock is held: whoever opened the file before finds by its inode that it locks nothing.
            if self._is_current(self._fd):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1

    def leave(self) -> None:
        """Gives the lock up and leaves the file, with the number in it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read_number(self) -> int:
        """Returns the number kept in the file; 0 at first, and for what write_number() has not written."""
        text = os.pread(self._fd, 32, 0).strip(b"\0\n ")
        return int(text) if text.isdigit() and len(text) <= NUMBER_DIGITS else 0

    def write_number(self, number: int) -> None:
        os.pwrite(self._fd, b"%-31d\n" % number, 0)

    def write_note(self, note: bytes) -> None:
        """Writes what the next holder is to read, behind the number."""
        os.pwrite(self._fd, note, NOTE_OFFSET)

    def take_note(self) -> bytes:
        """Returns what write_note() has written, and removes it; empty when there is nothing."""
        found = os.pread(self._fd, NOTE_LIMIT_BYTES, NOTE_OFFSET)
        if found:
            os.ftruncate(self._fd, NOTE_OFFSET)
        return found

    def _open(self) -> int:
        try:
            fd = os.open(self.path, _FLAGS, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP or (isinstance(error, PermissionError) and os.path.lexists(self.path)):
                raise self._untrusted(os.lstat(self.path)) from None
            raise
        found = os.fstat(fd)
        if not is_trusted_file(found) or found.st_nlink > 1:
            os.close(fd)
            raise self._untrusted(found)
        return fd

    def _untrusted(self, found: os.stat_result) -> UntrustedPathError:
        kind = stat.filemode(found.st_mode)
        return UntrustedPathError(
            f"the lock {self.path} is not ours: {kind} of uid {found.st_uid}, {found.st_nlink} links; allowed: a "
            f"regular file of uid {os.geteuid()}. Somebody else has put it there: choose another directory, with "
            "--socket or $PREFETCHD_SOCKET if it is the socket's"
        )

    def _is_current(self, fd: int) -> bool:
        try:
            named = os.lstat(self.path)
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)


def _holder_of(found: os.stat_result) -> int:
    """Returns the process that /proc/locks names for a file; 0 for one of a PID namespace not seen from here."""
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with open("/proc/locks") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == file:
                return int(fields[4])
    return 0
