"""Makes and finds our names in shared memory, where everybody may make names. A file of another owner counts as not
there; nobody can make a name that is to be ours beforehand, for it is not known."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

from prefetchd.wire.runtime_paths import SHARED_MEMORY, RuntimePaths

Made = TypeVar("Made")

ATTEMPTS = 20


def random_token() -> str:
    """Returns a token that tells a segment from all others, and cannot be guessed."""
    return os.urandom(4).hex()


def make_named(names: Iterator[str], make: Callable[[str], Made]) -> tuple[str, Made]:
    """Calls make(name) with the first of `names` that is free. Returns that name and the result. Raises FileExistsError
    when none is free."""
    for name in names:
        with contextlib.suppress(FileExistsError):
            return name, make(name)
    raise FileExistsError(17, f"{ATTEMPTS} names in {SHARED_MEMORY} are all taken")


def open_unnamed() -> int:
    """Returns a descriptor of an empty file in shared memory that has no name, for us alone. Nothing of it is left when
    nobody holds it any more, whoever is killed meanwhile. Raises OSError, also where the file system knows no such
    files."""
    return os.open(SHARED_MEMORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def give_name(fd: int, name: str) -> None:
    """Gives the file of open_unnamed() its name in shared memory. Raises OSError when that is taken."""
    # Python asks link(2) to follow the link in /proc only when it is given a directory's descriptor.
    directory = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(fd), SHARED_MEMORY + name, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def copy_unnamed(fd: int) -> int:
    """Returns a descriptor of a copy of the file behind `fd`, as open_unnamed() makes files. For one that was made in
    another mount of shared memory, as containers have: give_name() raises EXDEV then. Blocks while it copies. Raises
    OSError, also when there is no room."""
    copy = open_unnamed()
    try:
        left = os.fstat(fd).st_size
        if left:
            os.posix_fallocate(copy, 0, left)
        place = 0
        while left and (sent := os.sendfile(copy, fd, place, left)):
            place, left = place + sent, left - sent
        if left:
            raise OSError(errno.EIO, f"the file is {left} bytes shorter than it was")
    except BaseException:
        os.close(copy)
        raise
    return copy


def status_names(paths: RuntimePaths) -> Iterator[str]:
    """Yields the names that a status segment may have: the plain name, others only when somebody has taken that."""
    yield paths.status_segment
    for _ in range(ATTEMPTS - 1):
        yield f"{paths.status_segment}-{random_token()}"


def find_status(paths: RuntimePaths) -> list[str]:
    """Returns the names of our status segments of that socket, the latest first: usually one."""
    found: list[tuple[int, str]] = []
    plain = paths.status_segment[1:]
    with contextlib.suppress(OSError):
        for name in os.listdir(SHARED_MEMORY):
            if name == plain or name.startswith(plain + "-"):
                with contextlib.suppress(OSError):
                    stated = os.lstat(os.path.join(SHARED_MEMORY, name))
                    if _is_ours(stated):
                        found.append((stated.st_ctime_ns, f"/{name}"))
    return [name for _, name in sorted(found, reverse=True)]


def open_status(paths: RuntimePaths) -> int:
    """Returns a descriptor, to be read, of our status segment of that socket. Raises FileNotFoundError when there is
    none."""
    for name in find_status(paths):
        with contextlib.suppress(OSError):
            fd = os.open(SHARED_MEMORY + name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            if _is_ours(os.fstat(fd)):
                return fd
            os.close(fd)
    raise FileNotFoundError(2, os.strerror(2), SHARED_MEMORY + paths.status_segment)


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
