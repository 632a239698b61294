"""Give each process that runs the program its own open file descriptions.

A fork shares the open file descriptions of its parent. Two workers that seek and read through one of them get each
other's bytes, without an error. So each process reopens the files that the program has open, under the same numbers:
the program, and the C libraries that it uses, notice nothing. The rules, whose reasons are in decision 0131:

1. Regular files, block devices and directories that can be read are reopened through /proc/self/fd, with their access
   mode and status flags, at the position where they stood. Nothing is created or truncated. Deleted files and files in
   memory are reopened as well.
2. Files that are open for writing only stay shared: each process would write over the others' lines.
3. Two descriptors of one open file description, as dup(2) makes them, share one again afterwards.
4. A file that cannot be reopened stays shared, and a line on stderr names it.
5. Locks stay with the trainer: flock(2) and open-file-description locks belong to the description that is given up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import stat
import sys
from collections.abc import Collection

_DESCRIPTORS = "/proc/self/fd"
_KEPT_FLAGS = os.O_APPEND | os.O_NONBLOCK | os.O_DIRECT | os.O_NOATIME | os.O_SYNC
_O_PATH = os.O_PATH
_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
_KCMP_FILE = 0

_libc = ctypes.CDLL(None, use_errno=True)

_files: set[int] = set()
"""The descriptors of the program's files in this process."""


def files_but(others: Collection[int]) -> set[int]:
    """Return the descriptors that rule 1 applies to, less `others`. Standard input, output and error are left out."""
    return {fd for fd in open_descriptors() if fd > 2 and fd not in others and _is_reopened(fd)}


def adopt_files(descriptors: Collection[int]) -> None:
    """Take these descriptors for the program's files: reopen_files() reopens them here and in forks of this process."""
    _files.update(descriptors)


def reopen_files() -> None:
    """Reopen the program's files, so that this process shares none of them with the one that it was forked from. Called
    in each such fork before it runs code of the user's."""
    reopened: list[tuple[int, int]] = []
    for fd in sorted(_files):
        if not _is_reopened(fd):
            # Closed since then, or another file.
            _files.discard(fd)
            continue
        twin = next((new for old, new in reopened if _is_one_description(old, fd)), None)
        if twin is None:
            try:
                twin = _reopened(fd)
            except OSError as error:
                _say_shared(fd, error)
                continue
        reopened.append((fd, twin))
    # Not before all are compared with those that are still as they were.
    for fd, new in reopened:
        os.dup2(new, fd, inheritable=os.get_inheritable(fd))
    for new in {new for _, new in reopened}:
        os.close(new)


def _reopened(fd: int) -> int:
    """Open the file behind `fd` once more, at the same position. Raises OSError."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    position = os.lseek(fd, 0, os.SEEK_CUR)
    new = os.open(f"{_DESCRIPTORS}/{fd}", flags & (os.O_ACCMODE | _KEPT_FLAGS) | os.O_CLOEXEC)
    try:
        os.lseek(new, position, os.SEEK_SET)
    except OSError:
        os.close(new)
        raise
    return new


def _is_reopened(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError:
        return False
    is_file = stat.S_ISREG(mode) or stat.S_ISBLK(mode) or stat.S_ISDIR(mode)
    return is_file and flags & os.O_ACCMODE != os.O_WRONLY and not flags & _O_PATH


def _is_one_description(fd: int, other: int) -> bool:
    """Return True when both descriptors have one open file description (kcmp(2)). False where the kernel does not
    tell."""
    if _KCMP is None or not os.path.sameopenfile(fd, other):
        return False
    pid = os.getpid()
    return bool(_libc.syscall(_KCMP, pid, pid, _KCMP_FILE, fd, other) == 0)


def _say_shared(fd: int, error: OSError) -> None:
    path = "a file"
    with contextlib.suppress(OSError):
        path = os.readlink(f"{_DESCRIPTORS}/{fd}")
    print(
        f"prefetchd: {path} cannot be opened a second time ({error.strerror}), so all workers share its position: "
        "samples that seek and read in it may get each other's bytes. Open the file in __getitem__ instead",
        file=sys.stderr,
    )


def open_descriptors() -> list[int]:
    """Return the numbers of all descriptors of this process."""
    listing = os.open(_DESCRIPTORS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [int(name) for name in os.listdir(listing) if int(name) != listing]
    finally:
        os.close(listing)
