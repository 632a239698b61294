"""Zygotes: processes that import once and fork often. Nothing here runs in the daemon.

    daemon --exec--> environment zygote    imports torch and what the trainer had imported of its kin
                       |--fork--> stream zygote    imports the user's modules, unpickles the dataset, freezes the gc
                                    |--fork--> worker, worker, ...

A zygote forks only while it is single-threaded. When imports have started threads, its children are executed anew
instead and load for themselves, with a warning. Each zygote reaps its children and tells the daemon how they ended;
that they have ended, the daemon knows from their pidfds.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator

from prefetchd.wire.framing import close_all, receive_with_fds, send
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.messages import ChildEnded, LoadFailed, Message, Ready, Spawned, SpawnStream, SpawnWorker
from prefetchd.wire.program_layout import Environment
from prefetchd.wire.stream_spec import StreamSpec, decode_spec, encode_spec
from prefetchd.workers.backend import PLANNER
from prefetchd.workers.environment import enter
from prefetchd.workers.note import map_note
from prefetchd.workers.process_setup import (
    die_first_for_memory,
    die_with_parent,
    leave_signals_to_daemon,
    name_process,
    send_output_to,
    thread_count,
)
from prefetchd.workers.program import Program, load_program, read_environment
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


def main(role: str, parent: str, *arguments: str) -> None:
    """Entry point of an executed child: `role`, the expected parent's pid, then descriptors and numbers."""
    die_with_parent(int(parent))
    leave_signals_to_daemon()
    numbers = [int(each) for each in arguments]
    # Handed over for us, not for what the user's code may execute.
    for fd in numbers[: 2 if role == ENVIRONMENT else 4]:
        os.set_inheritable(fd, False)
    sock = socket.socket(fileno=numbers[0])
    note_fd = numbers[1]
    answer_with_stacks(note_fd)
    if role == ENVIRONMENT:
        _serve_environment(sock, note_fd)
        return
    _, _, program_fd, spec_fd, *place_and_workers = numbers
    spec = _read_spec(spec_fd)
    enter(read_environment(program_fd))
    _prepare_for_programs()
    if role == STREAM:
        _serve_stream(sock, note_fd, program_fd, spec)
    else:
        program = load_program(program_fd, again=spec.order == "iterable")
        os.close(program_fd)
        _serve_worker(sock, note_fd, program, spec, *place_and_workers)


# --- the three roles ------------------------------------------------------------------------------------------


def _serve_environment(sock: socket.socket, note_fd: int) -> None:
    name_process("prefetchd-env")
    children = _Children(sock, note_fd)
    preloaded = False
    for message, fds in children.requests():
        if not isinstance(message, SpawnStream):
            close_all(fds)
            continue
        program_fd, note_fd = fds
        environment = read_environment(program_fd)
        if not preloaded:
            _prepare_for_programs()
            _preload(environment.preload)
            preloaded = True
            kill_point("env.preloaded")
        spec = message.spec

        def serve(
            child: socket.socket,
            environment: Environment = environment,
            note_fd: int = note_fd,
            program_fd: int = program_fd,
            spec: bytes = spec,
        ) -> None:
            enter(environment)
            _serve_stream(child, note_fd, program_fd, decode_spec(spec))

        children.start(message.stream, serve, STREAM, note_fd, program_fd, spec)
        close_all(fds)


def _serve_stream(sock: socket.socket, note_fd: int, program_fd: int, spec: StreamSpec) -> None:
    from prefetchd.workers.user_code import load_program_or_fail

    name_process("prefetchd-zyg")
    kill_point("zygote.started")
    program = load_program_or_fail(program_fd, spec)
    if isinstance(program, LoadFailed):
        send(sock, program)
        return
    # Frozen objects are never moved between generations, so that forked workers leave their pages shared.
    gc.collect()
    gc.freeze()
    threads = thread_count()
    note = ""
    if threads > 1:
        note = f"imports started {threads - 1} threads: workers are executed anew instead of forked"
    kill_point("zygote.loaded")
    send(sock, Ready(note))
    children = _Children(sock, note_fd)
    for message, fds in children.requests():
        if isinstance(message, SpawnWorker):
            place, workers, note_of_child = message.place, message.workers, fds[0]

            def serve(
                child: socket.socket, note_fd: int = note_of_child, place: int = place, workers: int = workers
            ) -> None:
                os.close(program_fd)
                _serve_worker(child, note_fd, program, spec, place, workers)

            numbers = (place, workers)
            children.start(message.worker, serve, WORKER, note_of_child, program_fd, encode_spec(spec), numbers)
        close_all(fds)


def _serve_worker(
    sock: socket.socket, note_fd: int, program: Program, spec: StreamSpec, place: int, workers: int
) -> None:
    from prefetchd.workers.planner import run_planner
    from prefetchd.workers.worker import run_worker

    if place == PLANNER:
        name_process("prefetchd-plan")
        run_planner(sock, spec, program, map_note(note_fd))
        return
    name_process(f"prefetchd-w{place}")
    die_first_for_memory()
    kill_point("worker.started")
    run_worker(sock, spec, program, place, workers, map_note(note_fd))


# --- children -------------------------------------------------------------------------------------------------


class _Children:
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
        send(self._sock, ChildEnded(number, _ending(status)))


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


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {_signal_name(os.WTERMSIG(status))}"
    return f"exited with {os.WEXITSTATUS(status)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _prepare_for_programs() -> None:
    """Imports torch, and hooks what must be hooked before the user's modules are imported."""
    importlib.import_module("prefetchd.workers.worker")
    importlib.import_module("prefetchd.workers.seeding").hook_state_readers()


def _preload(modules: tuple[str, ...]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:
            # It is only a head start: the program itself will import it, or say why it cannot.
            traceback.print_exc()


def _write_spec(spec: bytes) -> int:
    fd = os.memfd_create("spec")
    os.write(fd, spec)
    return fd


def _read_spec(fd: int) -> StreamSpec:
    """The spec behind `fd`, which is closed."""
    spec = os.pread(fd, 1 << 16, 0)
    os.close(fd)
    return decode_spec(spec)
