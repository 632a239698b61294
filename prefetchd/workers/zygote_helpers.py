"""Does what takes long beside forking workers in forks of the zygote, one for each piece of work."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
from collections.abc import Callable
from functools import partial

from prefetchd.processes.attempts import Attempts
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import close_all, disclose, enclose, receive_with_fds, send
from prefetchd.wire.messages import Message
from prefetchd.workers.process_setup import die_with_parent, end_after, name_process
from prefetchd.workers.program_files import reopen_files

HELPER_NICE = 5
MOST_DEATHS = 3
"""How many processes may die at one piece of work before it is given up."""

Work = Callable[[], tuple[Message, list[int]]]
"""Returns a message, and the descriptors that go with it."""


@dataclasses.dataclass
class _Task:
    """A piece of work. `what` it is, after "to"; `failed` is called when it never comes to be done."""

    what: str
    work: Work
    failed: Callable[[], None]
    deaths: int = 0


class Helpers:
    """The helpers of one zygote. What they say goes through the zygote: the daemon may be another one by then."""

    def __init__(
        self, attempts: Attempts, give_up: Callable[[], None], said: Callable[[Message, list[int]], None]
    ) -> None:
        """Takes the callbacks. A helper calls `give_up` first, for what is the zygote's own. said(message, descriptors)
        is called in the zygote; the descriptors stay open for as long as that takes."""
        self._attempts = attempts
        self._give_up = give_up
        self._said = said
        self._tasks: dict[socket.socket, tuple[int, _Task]] = {}
        # Those that have said all, and are about to end, by their pidfds: a fork of so large a process takes long to.
        self._ending: dict[int, int] = {}

    def start(self, what: str, work: Work, failed: Callable[[], None]) -> None:
        """Does `work` in a process of its own, as soon as one can be had. Other processes follow those that die at it,
        as for memory; after MOST_DEATHS of them `failed` is called. `what` says for people what it is, after "to"."""
        self._start(_Task(what, work, failed))

    def _start(self, task: _Task) -> None:
        self._attempts.make(f"no process can be forked to {task.what}", partial(self._fork, task))

    def _fork(self, task: _Task) -> None:
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.callback(ours.close)
            with theirs:
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    end_after(partial(self._help, parent, ours, theirs, task.work))
            opened.pop_all()
        self._tasks[ours] = pid, task

    def _help(self, parent: int, ours: socket.socket, theirs: socket.socket, work: Work) -> None:
        die_with_parent(parent)
        name_process("prefetchd-help")
        ours.close()
        self._give_up()
        reopen_files()
        os.nice(HELPER_NICE)
        send_long(theirs, *work())

    def takers(self) -> dict[int, Callable[[], None]]:
        """Maps each descriptor to what is to be done when it can be read."""
        found: dict[int, Callable[[], None]] = {pidfd: partial(self._ended, pidfd) for pidfd in self._ending}
        for sock in self._tasks:
            found[sock.fileno()] = partial(self._answered, sock)
        return found

    @property
    def pids(self) -> set[int]:
        """The pids of all helpers that are not reaped yet."""
        return {pid for pid, _ in self._tasks.values()} | set(self._ending.values())

    def forget(self) -> None:
        """Forgets the helpers, in a forked child: they are not its own."""
        for sock in self._tasks:
            sock.close()
        self._tasks.clear()
        close_all(list(self._ending))
        self._ending.clear()

    def _answered(self, sock: socket.socket) -> None:
        pid, task = self._tasks.pop(sock)
        fds: list[int] = []
        message: Message | None = None
        with sock, contextlib.suppress(OSError, ProtocolError):
            message, fds = receive_with_fds(sock)
            if message is not None:
                message, fds = disclose(message, fds)
        self._ending[os.pidfd_open(pid)] = pid
        if message is not None:
            self._said(message, fds)
        else:
            self._died(task)
        close_all(fds)

    def _died(self, task: _Task) -> None:
        task.deaths += 1
        if task.deaths < MOST_DEATHS:
            self._start(task)
            return
        print(f"prefetchd: {task.deaths} processes died that were to {task.what}: it is not done", file=sys.stderr)
        task.failed()

    def _ended(self, pidfd: int) -> None:
        os.waitpid(self._ending.pop(pidfd), 0)
        os.close(pidfd)


def send_long(sock: socket.socket, message: Message, fds: list[int]) -> None:
    """Sends a message, however long it is; closes `fds`. Blocks."""
    enclosed, beside = (message, []) if fds else enclose(message)
    try:
        send(sock, enclosed, fds or beside)
    finally:
        close_all([*fds, *beside])
