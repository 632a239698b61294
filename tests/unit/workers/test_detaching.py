"""What a fork gives up: each test does so in a fork of its own."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import sys
import tempfile

import pytest

from prefetchd.workers import detaching
from prefetchd.workers.program_files import open_descriptors
from tests.scenario.forked import forked, told_by


def in_a_fork(work) -> str:
    """What work() gives there, as text. It is told by a file: pipes are what the work gives up."""
    told = os.memfd_create("told")
    told_by(forked(lambda: os.write(told, str(work()).encode())))
    with os.fdopen(told, "rb") as file:
        file.seek(0)
        return file.read().decode()


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


@pytest.fixture
def opened(tmp_path):
    """Descriptors by name."""
    ours, theirs = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    reading, writing = os.pipe()
    terminal, its_end = os.openpty()
    regular = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    memory = os.memfd_create("memory")
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        segment = os.dup(file.fileno())
    directory = os.open(tmp_path, os.O_RDONLY)
    zero = os.open("/dev/zero", os.O_RDONLY)
    found = {
        "socket": ours.detach(),
        "other socket": theirs.detach(),
        "port": listening.detach(),
        "pipe": reading,
        "other pipe": writing,
        "terminal": terminal,
        "other terminal": its_end,
        "event": os.eventfd(0) if hasattr(os, "eventfd") else os.pidfd_open(os.getpid()),
        "file": regular,
        "memory": memory,
        "segment": segment,
        "directory": directory,
        "zero": zero,
    }
    yield found
    for fd in found.values():
        os.close(fd)


def test_what_others_would_miss_goes_and_its_number_is_nobody_elses(opened):
    before = {name: path_of(fd) for name, fd in opened.items()}

    def look():
        detaching.give_up_descriptors([opened["other socket"]])
        return {name for name, fd in opened.items() if path_of(fd) == "/dev/null"} ^ {
            name for name, fd in opened.items() if path_of(fd) != before[name]
        }, sorted(name for name, fd in opened.items() if path_of(fd) == "/dev/null")

    went = ["event", "other pipe", "other terminal", "pipe", "port", "socket", "terminal"]
    assert in_a_fork(look) == str((set(), went))


@pytest.mark.parametrize("above", [-1, 0, 187], ids=["below", "at", "above"])
def test_numbers_around_the_limit_are_given_up_too(opened, above):
    """A shell's pipe at 251 under a limit of 64 kept its trainer from loading at all: no dup2() goes there."""
    # Above all that other tests have left open.
    limit = 64 + max(open_descriptors())
    went = {"event", "other pipe", "other terminal", "pipe", "port", "socket", "other socket", "terminal"}

    def look():
        left = {}
        for name, fd in opened.items():
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
            os.dup2(fd, limit + above)
            before = path_of(limit + above)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            detaching.give_up_descriptors(opened.values())
            found = path_of(limit + above) if os.path.lexists(f"/proc/self/fd/{limit + above}") else "closed"
            left[name] = "stays" if found == before else found
        gone = "/dev/null" if above < 0 else "closed"
        return {name: what for name, what in left.items() if what != (gone if name in went else "stays")}

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert in_a_fork(look) == "{}"


def test_what_the_program_holds_stays(opened):
    held = socket.socket(fileno=os.dup(opened["port"]))
    file = os.fdopen(os.dup(opened["pipe"]))

    def look():
        detaching.give_up_descriptors([], [{"served": [held], "read": file}])
        return path_of(held.fileno())[:6], path_of(file.fileno())[:5], path_of(opened["port"])

    with held, file:
        assert in_a_fork(look) == str(("socket", "pipe:", "/dev/null"))


def test_nothing_is_looked_through_where_there_is_nothing_to_decide(opened, monkeypatch):
    """A dataset of many small objects is not gone through before the first batch without a reason."""
    looked: list[object] = []
    monkeypatch.setattr(detaching, "own_handles", lambda *given: looked.append(given) or set())

    def look():
        detaching.give_up_descriptors(range(1000), ["the program"])
        before = len(looked)
        detaching.give_up_descriptors([], ["the program"])
        return before, len(looked)

    assert in_a_fork(look) == "(0, 1)"


def test_mappings_of_devices_go(monkeypatch):
    def look():
        with open("/dev/zero", "r+b") as device:
            mapped, other = (mmap.mmap(device.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE) for _ in range(2))
        monkeypatch.setattr(detaching, "GIVEN_BACK", rb"/dev/nothing")
        detaching.unmap_devices()
        before = mappings_of("/dev/zero")
        assert mapped[:1] + other[:1] == bytes(2)
        monkeypatch.setattr(detaching, "GIVEN_BACK", rb"/dev/(?:null|zer)")
        detaching.unmap_devices()
        return before > 0, mappings_of("/dev/zero")

    assert in_a_fork(look) == "(True, 0)"


DEVICES = [
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-caps/nvidia-cap1",
    "/dev/dri/renderD128",
    "/dev/kfd",
    "/dev/infiniband/uverbs0",
]
KEPT_MAPPINGS = [
    "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
    "/home/user/dev/nvidia0",
    "/home/user/a copy of /dev/nvidia0",
    "/dev/shm/nvidia0",
    "/dev/shm/prefetchd-0a1b2c3d-ring-1",
    "/dev/zero (deleted)",
    "/memfd:prefetchd-0a1b2c3d (deleted)",
    "/memfd:a copy of /dev/nvidia0 (deleted)",
    "[heap]",
    "",
]


@pytest.fixture
def mapped_as(tmp_path):
    """A line of /proc/PID/maps as the kernel writes it, of a file of this path; and where its mapping is."""
    file = tmp_path / "file"
    file.write_bytes(bytes(mmap.PAGESIZE))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0), open("/proc/self/maps", "rb") as maps:
        (line,) = [each for each in maps if str(file).encode() in each]
    begin, end = (int(each, 16) for each in line.split()[0].split(b"-"))
    return lambda path: (line.replace(str(file).encode(), path.encode()), (begin, end))


@pytest.mark.parametrize("path", DEVICES)
def test_gpus_and_network_adapters_are_what_is_unmapped(mapped_as, path):
    line, place = mapped_as(path)
    others = b"".join(mapped_as(each)[0] for each in KEPT_MAPPINGS)
    assert detaching.device_mappings(others + line + others) == [place]


@pytest.mark.parametrize("path", KEPT_MAPPINGS)
def test_files_and_memory_stay_mapped(mapped_as, path):
    line, _ = mapped_as(path)
    assert detaching.device_mappings(line) == []


@pytest.mark.parametrize("path", DEVICES)
def test_descriptors_of_gpus_and_network_adapters_go(path):
    """Here a device that stays says that it is one of them."""
    zero, readlink = os.open("/dev/zero", os.O_RDONLY), os.readlink

    def look():
        os.readlink = lambda of: path if of == f"/proc/self/fd/{zero}" else readlink(of)
        detaching.give_up_descriptors([])
        return os.fstat(zero).st_rdev == os.stat("/dev/null").st_rdev

    try:
        assert in_a_fork(look) == "True"
    finally:
        os.close(zero)


def mappings_of(path: str) -> int:
    with open("/proc/self/maps") as maps:
        return maps.read().count(path)


def test_no_handler_timer_or_mask_of_the_trainers_is_left():
    def handler(*_):
        raise AssertionError("the trainer's")

    def look():
        signal.signal(signal.SIGUSR1, handler)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        detaching.reset_signals()
        names = ("SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD")
        return [signal.getsignal(getattr(signal, name)).name for name in names], signal.pthread_sigmask(
            signal.SIG_BLOCK, []
        )

    # Timers no fork has.
    signal.setitimer(signal.ITIMER_PROF, 1000)
    try:
        expected = ["SIG_DFL", "SIG_IGN", "SIG_IGN", "SIG_DFL", "SIG_DFL"]
        assert in_a_fork(look) == str((expected, set()))
        assert in_a_fork(lambda: signal.getitimer(signal.ITIMER_PROF)) == "(0.0, 0.0)"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def test_the_trainers_session_and_terminal_are_left():
    def look():
        detaching.leave_session()
        return os.getsid(0) == os.getpid() == os.getpgrp()

    assert in_a_fork(look) == "True"


class NoStream:
    """In stdout's place, and of the user's own making."""

    @property
    def __class__(self):
        raise LookupError("it is not there")

    def __getattr__(self, name):
        raise LookupError(name)


def test_output_goes_to_the_pipe_whatever_stands_in_its_place():
    def look():
        reading, writing = os.pipe()
        sys.stdout = NoStream()
        detaching.redirect_output(writing)
        print("a line")
        ctypes.CDLL(None).puts(b"from C")
        ctypes.CDLL(None).fflush(None)
        os.close(writing)
        return os.read(reading, 100), os.read(0, 1)

    assert in_a_fork(look) == str((b"a line\nfrom C\n", b""))
