"""Manages the children of a zygote: forks or executes them, hands them to the daemon, and reaps them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes.bootstrap import BOOTSTRAP, STREAM, WORKER
from prefetchd.processes.descendants import children
from prefetchd.processes.orphans import end_strangers, reap_strangers
from prefetchd.processes.stack_dumps import answer_with_stacks
from prefetchd.wire.framing import close_all, receive_with_fds, send
from prefetchd.wire.messages import ChildEnded, Message, NotSpawned, Spawned
from prefetchd.wire.os_errors import why
from prefetchd.workers.detaching import leave_session
from prefetchd.workers.process_setup import (
    die_with_parent,
    end_after,
    leave_signals_to_daemon,
    send_output_to,
    unforkable_threads,
)

STRANGERS_END_WITHIN_S = 2.0

# By the child's role.
BEFORE_FORK = {STREAM: "env.fork.before", WORKER: "zygote.fork.before"}
AFTER_FORK = {STREAM: "env.fork.after", WORKER: "zygote.fork.after"}
AFTER_SPAWNED = {STREAM: "env.fork.told", WORKER: "zygote.fork.told"}


class Children:
    """Starts children and reaps them, for the daemon at the other end of `sock`."""

    def __init__(self, sock: socket.socket, note_fd: int = -1, *, ends_orphans: bool = False) -> None:
        """Serves the daemon at `sock`. With `ends_orphans` what a child leaves behind ends with it; else with
        end_strangers()."""
        self._sock = sock
        self._note_fd = note_fd
        self._pidfds: dict[int, tuple[int, int]] = {}
        self._older: set[int] = set()
        self._ends_orphans = ends_orphans

    def requests(self) -> Iterator[tuple[Message, list[int]]]:
        """Yields (message, descriptors) until the daemon closes the socket; reaps children in between. Blocks."""
        self._older = children()
        while True:
            reap_strangers(self._known)
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            for pidfd in self._pidfds:
                poll.register(pidfd, select.POLLIN)
            for fd, _ in poll.poll():
                if fd in self._pidfds:
                    self.reap(fd)
                    continue
                message, fds = receive_with_fds(self._sock)
                if message is None:
                    return
                yield message, fds

    @property
    def pids(self) -> set[int]:
        """The pids of all children that are not reaped yet."""
        return {pid for pid, _ in self._pidfds.values()}

    @property
    def _known(self) -> set[int]:
        """The children that are reaped here, and those that importing modules has left."""
        return self.pids | self._older

    def end_strangers(self, others: Collection[int] = ()) -> None:
        """Ends what workers that are dead have left running; `others` are children of ours that somebody else reaps."""
        end_strangers(self._known.union(others), STRANGERS_END_WITHIN_S)

    @property
    def pidfds(self) -> list[int]:
        """The pidfds of all children that are not reaped yet: one that can be read is of a child that has ended."""
        return list(self._pidfds)

    def start(
        self,
        number: int,
        serve: Callable[[socket.socket], None],
        role: str,
        note_fd: int,
        program_fd: int,
        spec: bytes,
        numbers: tuple[int, ...] = (),
    ) -> None:
        """Forks a child that runs serve(socket); executes one of `role` anew, for the same program and spec, when
        forking would not be safe. Without a program (`program_fd` -1) it is forked all the same. When no process can be
        had the daemon is told. The descriptors stay the caller's."""
        with contextlib.ExitStack() as opened:
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                opened.enter_context(ours)
                opened.enter_context(theirs)
                output, into = os.pipe()
                opened.callback(close_all, [output, into])
                kill_point(BEFORE_FORK[role])
                if program_fd < 0 or not unforkable_threads():
                    pid = self._fork(serve, role, note_fd, ours, theirs, output, into)
                else:
                    spec_fd = _write_spec(spec)
                    opened.callback(os.close, spec_fd)
                    pid = _execute(role, theirs, into, [note_fd, program_fd, spec_fd], numbers)
                kill_point(AFTER_FORK[role])
                # From here on the child is known by its pidfd alone. Without one it is ended: nobody could say when it
                # dies.
                pidfd = _pidfd_of(pid)
            except OSError as error:
                self._tell(NotSpawned(number, why(error)))
                return
            self._pidfds[pidfd] = (pid, number)
            self._tell(Spawned(number, pid), [pidfd, ours.fileno(), output])
            kill_point(AFTER_SPAWNED[role])

    def _fork(
        self,
        serve: Callable[[socket.socket], None],
        role: str,
        note_fd: int,
        ours: socket.socket,
        theirs: socket.socket,
        output: int,
        into: int,
    ) -> int:
        parent = os.getpid()

        def begin() -> None:
            # The order matters: it must die with its parent before it can block, and give up the parent's descriptors
            # before the user's code runs.
            die_with_parent(parent)
            if role == STREAM:
                leave_session()
            leave_signals_to_daemon()
            answer_with_stacks(note_fd)
            self._forget()
            ours.close()
            os.close(output)
            send_output_to(into)
            os.close(into)
            try:
                serve(theirs)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()

        pid = os.fork()
        if pid == 0:
            end_after(begin)
        return pid

    def _forget(self) -> None:
        """Closes, in a forked child, the parent's descriptors."""
        self._sock.close()
        if self._note_fd >= 0:
            os.close(self._note_fd)
        for pidfd in self._pidfds:
            os.close(pidfd)

    def reap(self, pidfd: int) -> None:
        """Reaps a child that has ended, and tells the daemon how."""
        pid, number = self._pidfds.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if self._ends_orphans:
            self.end_strangers()
        self._tell(ChildEnded(number, status))

    def _tell(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends a message to the daemon. Its end is seen when the socket is read from: a zygote that outlives it must
        not die of sending."""
        with contextlib.suppress(ConnectionError):
            send(self._sock, message, fds)

    def kill_all(self) -> None:
        """Ends all children at once, and waits until they are dead; nobody is told."""
        for pid, _ in self._pidfds.values():
            os.kill(pid, signal.SIGKILL)
        for pidfd, (pid, _) in self._pidfds.items():
            os.waitpid(pid, 0)
            os.close(pidfd)
        self._pidfds.clear()


def _pidfd_of(pid: int) -> int:
    """Opens the pidfd of a child that nobody knows of yet; ends the child when there can be none. Raises OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _execute(role: str, sock: socket.socket, output: int, fds: list[int], numbers: tuple[int, ...]) -> int:
    command = [sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path), role, str(os.getpid()), str(sock.fileno())]
    command += [*map(str, fds), *map(str, numbers)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[sock.fileno(), *fds],
        cwd="/",
        start_new_session=role == STREAM,
    )
    # It is reaped by its pidfd; Popen must not do it when it is collected.
    process.returncode = 0
    return process.pid


def _write_spec(spec: bytes) -> int:
    """Writes the spec into a memfd. Raises OSError."""
    fd = os.memfd_create("spec")
    os.write(fd, spec)
    return fd
