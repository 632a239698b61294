"""Gives up what a fork of a trainer must not keep when it works for a daemon: all that would be missed elsewhere.

A fork has the trainer's descriptors. Its sockets would keep a port taken, its pipes and terminals keep others waiting
for their end, its GPU devices keep the driver from giving the GPU's memory back. Regular files, files in memory and the
dataset's own handles stay. Descriptors that go are not closed but made /dev/null: whoever still holds their number, and
closes it one day, must not close another's. Only a number above this process's own limit is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import signal
import stat
import sys
from collections.abc import Collection, Iterable
from typing import Any

from prefetchd.workers.own_handles import own_handles
from prefetchd.workers.program_files import open_descriptors

_DESCRIPTORS = "/proc/self/fd"
_HARMLESS_DEVICES = frozenset(
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/fuse", "/dev/kmsg"]
)
GIVEN_BACK = rb"/dev/(?:nvidia|dri|kfd|infiniband)"
"""Matches how the paths of devices begin whose mappings are given up."""

_libc = ctypes.CDLL(None, use_errno=True)


def leave_session() -> None:
    """Begins a session and a process group of its own, without the trainer's terminal: what is sent to the trainer's
    group does not end this process, nor can the user's code signal others with its own."""
    with contextlib.suppress(OSError):
        os.setsid()


def reset_signals() -> None:
    """Resets signal handlers: none of the trainer's runs here. Signals that it ignores stay ignored, and so is SIGPIPE,
    as Python has it: what is printed when the daemon is dead ends no zygote."""
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def give_up_descriptors(kept: Collection[int], parts: Iterable[object] = ()) -> None:
    """Makes the descriptors that others would miss /dev/null; `kept` stay, and what objects reached from `parts` hold.
    0, 1 and 2 are not looked at."""
    missed = {fd for fd in open_descriptors() if fd > 2 and fd not in kept and _is_missed(fd)}
    if missed:
        missed -= own_handles(parts, missed)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in missed:
        try:
            os.dup2(null, fd, inheritable=False)
        except OSError:
            # A number that the process may not have itself: it was inherited before `ulimit -n` was lowered. The kernel
            # gives it to no other descriptor, so closing it is safe.
            os.close(fd)
    os.close(null)


def unmap_devices() -> None:
    """Unmaps GPUs and network adapters: mappings keep their files open as descriptors do."""
    with open("/proc/self/maps", "rb") as maps:
        found = device_mappings(maps.read())
    for begin, end in found:
        _libc.munmap(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin))


def device_mappings(maps: bytes) -> list[tuple[int, int]]:
    """Returns where the devices that are given back begin and end in memory, by the text of /proc/PID/maps."""
    # What stands before a path has no spaces; a path may have some, and what follows them does not begin one.
    line = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+)(?: \S+){4} +" + GIVEN_BACK, re.MULTILINE)
    return [(int(begin, 16), int(end, 16)) for begin, end in line.findall(maps)]


def redirect_output(fd: int) -> None:
    """Sends stdout and stderr to the pipe `fd`, line by line, also where a notebook or a test has put others in their
    place; stdin is empty. The trainer has flushed its own before it forked."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null > 2:
        os.close(null)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if _writes_to(stream, number):
            stream.reconfigure(line_buffering=True)
        else:
            # Kept: collected, it would write what the trainer may have in it a second time.
            _former_streams.append(stream)
            setattr(sys, name, io.TextIOWrapper(io.FileIO(number, "w", closefd=False), line_buffering=True))


_former_streams: list[Any] = []


def _writes_to(stream: Any, number: int) -> bool:
    # Exactly: another one's methods may be the user's.
    try:
        return type(stream) is io.TextIOWrapper and stream.fileno() == number
    except (OSError, ValueError):
        return False


def _is_missed(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return False
        return not stat.S_ISCHR(mode) or os.readlink(f"{_DESCRIPTORS}/{fd}") not in _HARMLESS_DEVICES
    except OSError:
        return False
