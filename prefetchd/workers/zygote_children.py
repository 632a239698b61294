"""The children of a zygote: forked or executed anew, handed to the daemon, and reaped."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator

from prefetchd.wire.framing import receive_with_fds, send
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.messages import ChildEnded, Message, Spawned
from prefetchd.workers.process_setup import die_with_parent, leave_signals_to_daemon, send_output_to, thread_count
from prefetchd.workers.stack_dumps import answer_with_stacks

# Run as -c BOOTSTRAP, with sys.path as JSON, then main()'s arguments: this very prefetchd must be found first.
BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from prefetchd.workers.zygote import main; main(*sys.argv[2:])"
)
ENVIRONMENT, STREAM, WORKER = "environment", "stream", "worker"

# By the child's role.
BEFORE_FORK = {STREAM: "env.fork.before", WORKER: "zygote.fork.before"}
AFTER_FORK = {STREAM: "env.fork.after", WORKER: "zygote.fork.after"}
AFTER_SPAWNED = {STREAM: "env.fork.told", WORKER: "zygote.fork.told"}


class Children:
    """Starts children, reaps them, and hands requests of the daemon out in between."""

    def __init__(self, sock: socket.socket, note_fd: int) -> None:
        self._sock = sock
        self._note_fd = note_fd
        self._pidfds: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def requests(self) -> Iterator[tuple[Message, list[int]]]:
        """(message, descriptors) until the daemon closes the socket. Blocks."""
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._pidfds:
                    self._reap(fd)
                    continue
                message, fds = receive_with_fds(self._sock)
                if message is None:
                    return
                yield message, fds

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
        forking would not be safe. The descriptors stay the caller's."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, into = os.pipe()
        kill_point(BEFORE_FORK[role])
        if thread_count() == 1:
            pid = self._fork(serve, note_fd, ours, theirs, output, into)
        else:
            spec_fd = _write_spec(spec)
            pid = _execute(role, theirs, into, [note_fd, program_fd, spec_fd], numbers)
            os.close(spec_fd)
        kill_point(AFTER_FORK[role])
        pidfd = os.pidfd_open(pid)
        self._pidfds[pidfd] = (pid, number)
        self._poll.register(pidfd, select.POLLIN)
        send(self._sock, Spawned(number, pid), [pidfd, ours.fileno(), output])
        kill_point(AFTER_SPAWNED[role])
        ours.close()
        theirs.close()
        os.close(output)
        os.close(into)

    def _fork(
        self,
        serve: Callable[[socket.socket], None],
        note_fd: int,
        ours: socket.socket,
        theirs: socket.socket,
        output: int,
        into: int,
    ) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            die_with_parent(parent)
            leave_signals_to_daemon()
            answer_with_stacks(note_fd)
            self._forget()
            ours.close()
            os.close(output)
            send_output_to(into)
            os.close(into)
            serve(theirs)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # The interpreter's teardown would run the parent's exit hooks.
            os._exit(code)

    def _forget(self) -> None:
        """In a forked child: the parent's descriptors are not ours."""
        self._sock.close()
        os.close(self._note_fd)
        for pidfd in self._pidfds:
            os.close(pidfd)

    def _reap(self, pidfd: int) -> None:
        pid, number = self._pidfds.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        send(self._sock, ChildEnded(number, ending(status)))


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
    )
    # It is reaped by its pidfd; Popen must not do it when it is collected.
    process.returncode = 0
    return process.pid


def ending(status: int) -> str:
    """In words, of what waitpid(2) gives."""
    if os.WIFSIGNALED(status):
        return f"killed by {_signal_name(os.WTERMSIG(status))}"
    return f"exited with {os.WEXITSTATUS(status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _write_spec(spec: bytes) -> int:
    fd = os.memfd_create("spec")
    os.write(fd, spec)
    return fd
