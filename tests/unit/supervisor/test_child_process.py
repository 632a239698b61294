"""A child as the daemon holds it: what it said and printed comes first, its death last and only when it is certain."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from prefetchd.processes.process_exit import CLEAN, KILLED, UNEXPLAINED
from prefetchd.supervisor.child_process import MOST_UNREAD_BYTES, ChildProcess
from prefetchd.supervisor.stream_host import handed_child
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import NoDescriptorError, receive_with_fds, send
from prefetchd.wire.messages import Fill, Message, NotSpawned, Ready, Spawned

DEADLINE_S = 30


class Readable:
    """A Watcher whose callbacks the test calls, in the order that it wants, at the time that it wants."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.callbacks: dict[int, Callable[[], None]] = {}
        self.later: list[tuple[float, Callable[[], None]]] = []

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        assert fd not in self.callbacks
        self.callbacks[fd] = callback

    def unwatch(self, fd: int) -> None:
        del self.callbacks[fd]

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.later.append((delay_s, callback))

    def now_s(self) -> float:
        return self.time_s


class Family:
    """A forked child that runs act(its socket), with stdout in the pipe; what is told of it, in order."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self.watcher = Readable()
        self.told: list[Any] = []
        self.left_out: list[int] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.output, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(into, 1)
                ours.close()
                act(theirs)
            finally:
                os._exit(0)
        theirs.close()
        os.close(into)
        self.pidfd = os.pidfd_open(self.pid)
        self.child = ChildProcess(
            self.watcher,
            ours,
            self.pid,
            self.pidfd,
            self.output,
            self._says,
            self.told.append,
            lambda lines, left_out: self.told.append(lines) if lines else self.left_out.append(left_out),
        )
        self.sock = ours.fileno()

    def _says(self, message: Message, fds: list[int]) -> None:
        assert not fds
        self.told.append(message)

    def wait_for_death(self) -> None:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000)

    def wait_until_readable(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000)

    def readable(self, fd: int) -> None:
        self.watcher.callbacks[fd]()

    def end(self) -> None:
        self.child.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def family():
    made = []

    def make(act: Callable[[socket.socket], None]) -> Family:
        made.append(Family(act))
        return made[-1]

    yield make
    for each in made:
        each.end()


def speaks_and_ends(sock: socket.socket) -> None:
    send(sock, Ready("one"))
    send(sock, Ready("two"))
    os.write(1, b"first line\nsecond line\nno newline")


def waits(sock: socket.socket) -> None:
    sock.recv(100)


def test_what_it_said_and_printed_comes_before_its_death(family):
    it = family(speaks_and_ends)
    it.wait_for_death()
    it.child.ended_as(CLEAN)
    it.readable(it.pidfd)
    assert it.told == [Ready("one"), Ready("two"), ["first line", "second line"], ["no newline"], CLEAN]
    it.child.close()
    assert it.watcher.callbacks == {}
    it.child.close()


def test_a_death_is_told_once_its_zygote_has_told_how(family):
    it = family(speaks_and_ends)
    it.wait_for_death()
    it.readable(it.pidfd)
    assert CLEAN not in it.told
    ((delay_s, reason_is_due),) = it.watcher.later
    assert delay_s < 1
    it.child.ended_as(CLEAN)
    assert it.told[-1] == CLEAN, "at once: what depends on it does not wait for the deadline"
    reason_is_due()
    assert it.told.count(CLEAN) == 1


def test_a_death_that_nobody_explains_is_told_all_the_same(family):
    it = family(speaks_and_ends)
    it.wait_for_death()
    it.readable(it.pidfd)
    it.watcher.later[0][1]()
    assert it.told[-1] == UNEXPLAINED


def test_a_death_is_not_told_of_one_that_was_closed_meanwhile(family):
    it = family(speaks_and_ends)
    it.wait_for_death()
    it.readable(it.pidfd)
    it.child.close()
    it.watcher.later[0][1]()
    assert UNEXPLAINED not in it.told


def test_lines_are_told_when_they_are_whole(family):
    def act(sock: socket.socket) -> None:
        os.write(1, b"begun ")
        sock.recv(100)
        os.write(1, "and ended: \u00e4\n".encode() + b"broken \xff\nrest")

    it = family(act)
    it.wait_until_readable(it.output)
    it.readable(it.output)
    assert it.told == []
    it.child.end_input()
    it.wait_for_death()
    for _ in range(2):
        it.readable(it.output)
    assert it.told == [["begun and ended: ä", "broken \ufffd"], ["rest"]]


def test_a_line_without_end_does_not_grow_for_ever(family):
    def act(sock: socket.socket) -> None:
        for _ in range(40):
            os.write(1, b"x" * 5000)

    it = family(act)
    while it.output in it.watcher.callbacks:
        it.wait_until_readable(it.output)
        it.readable(it.output)
    assert len(it.told) > 1
    assert sum(len(text) for (text,) in it.told) == 200_000


def test_end_of_its_socket_is_no_death(family):
    def act(sock: socket.socket) -> None:
        send(sock, Ready("bye"))
        sock.close()
        signal.pause()

    it = family(act)
    it.wait_until_readable(it.sock)
    it.readable(it.sock)
    while it.sock in it.watcher.callbacks:
        it.wait_until_readable(it.sock)
        it.readable(it.sock)
    assert it.told == [Ready("bye")]
    it.child.kill()
    it.wait_for_death()
    it.child.ended_as(KILLED)
    it.readable(it.pidfd)
    assert it.told[-1] == KILLED


def test_one_that_talks_nonsense_is_heard_no_more(family):
    def act(sock: socket.socket) -> None:
        sock.send(b"nonsense")
        send(sock, Ready("too late"))
        signal.pause()

    it = family(act)
    it.wait_until_readable(it.sock)
    it.readable(it.sock)
    assert it.told == []
    assert it.sock not in it.watcher.callbacks


@pytest.mark.parametrize("error", [None, ProtocolError("it was not asked"), RuntimeError("a fault of ours")])
def test_descriptors_that_its_receiver_does_not_take_are_closed(family, error):
    def act(sock: socket.socket) -> None:
        for count in range(1, 4):
            send(sock, Ready("with descriptors"), [0] * count)
        signal.pause()

    def hear(message: Message, fds: list[int]) -> None:
        heard.extend(fds)
        if error is not None:
            raise error

    it, heard = family(act), []
    it.child.tell(hear, it.told.append, lambda *_: None)
    it.wait_until_readable(it.sock)
    with contextlib.suppress(RuntimeError):
        it.readable(it.sock)
    assert heard
    for fd in heard:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


LARGE = Fill(tuple((k, 1, 0, 0, 0, 1, 0) for k in range(2000)))


def test_one_that_speaks_of_a_process_for_which_there_is_no_descriptor_goes_on(family):
    """Found as a stream that failed, as its zygote was killed again and again while descriptors were few."""

    def act(sock: socket.socket) -> None:
        send(sock, Spawned(5, 17))
        waits(sock)

    found = family(act)

    def takes(message: Message, fds: list[int]) -> None:
        if isinstance(message, Spawned):
            raise NoDescriptorError
        found.told.append(message)

    found.child.tell(takes, found.told.append, lambda lines, left_out: None)
    found.wait_until_readable(found.sock)
    found.readable(found.sock)
    (told,) = found.told
    assert isinstance(told, NotSpawned)
    assert told.child == 5
    assert "ulimit -n" in told.reason
    assert found.child.refusal is None


def test_the_process_that_a_zygote_has_forked_cannot_be_taken_without_a_descriptor():
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, into = os.pipe()
    pidfd = os.pidfd_open(os.getpid())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, limits[1]))
    # Numbers that are free below the limit are taken first.
    taken = list(as_many_as_there_are())
    try:
        with pytest.raises(NoDescriptorError, match="ulimit -n"):
            handed_child(Readable(), os.getpid(), [pidfd, control.detach(), output], *(lambda *_: None,) * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in (*taken, into):
            os.close(each)
    with theirs:
        assert theirs.recv(1) == b"", "what came with it is closed"


def as_many_as_there_are() -> Iterator[int]:
    """Opens descriptors until there is none left."""
    while True:
        try:
            yield os.open("/dev/null", os.O_RDONLY)
        except OSError:
            return


def test_one_that_takes_no_more_messages_is_killed(family):
    it = family(lambda sock: signal.pause())
    for _ in range(MOST_UNREAD_BYTES // 2000):
        it.child.send(LARGE)
    it.wait_for_death()


def test_one_that_reads_late_is_sent_all_in_order_with_its_descriptors_and_then_the_end(family):
    """Found as a bridge that was killed for a burst of tasks while it copied a batch."""
    reading, writing = os.pipe()
    go, going = os.pipe()

    def reads_late(sock: socket.socket) -> None:
        os.read(go, 1)
        count = 0
        while (found := receive_with_fds(sock))[0] is not None:
            message, fds = found
            count += message == LARGE
            for fd in fds:
                os.write(fd, f"{count} ".encode())
        os.write(writing, b"end")

    it = family(reads_late)
    for _ in range(40):
        it.child.send(LARGE)
    it.child.send(Ready(), (writing,))
    for _ in range(10):
        it.child.send(LARGE)
    it.child.end_input()
    os.write(going, b"x")
    while it.watcher.later:
        _, again = it.watcher.later.pop(0)
        again()
    it.wait_for_death()
    for fd in (writing, go, going):
        os.close(fd)
    assert os.read(reading, 100) == b"40 end"
    os.close(reading)


def test_sending_to_a_dead_one_is_harmless(family):
    it = family(lambda sock: None)
    it.wait_for_death()
    it.child.send(Ready())
    it.child.end_input()
    it.child.kill()
    assert it.child.is_dead(0)


def test_one_that_lives_is_not_dead(family):
    it = family(waits)
    assert not it.child.is_dead(0)
    it.child.kill()
    assert it.child.is_dead(DEADLINE_S)


def test_nothing_is_told_of_a_forsaken_one_and_its_burial_is(family):
    it = family(speaks_and_ends)
    buried: list[bool] = []
    it.child.forsake(lambda: buried.append(True))
    it.wait_for_death()
    it.readable(it.pidfd)
    assert it.told == []
    assert buried == [True]
    assert it.watcher.callbacks == {}
