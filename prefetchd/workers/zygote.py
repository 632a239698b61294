"""Runs zygotes: processes that import once and fork often. Nothing here runs in the daemon.

    daemon --exec--> environment zygote    imports torch and what the trainer had imported of its kin
                       |--fork--> stream zygote    imports the user's modules, unpickles the dataset, freezes the gc
                                    |--fork--> worker, worker, ...

A zygote forks only while it is single-threaded, but for threads that are known to be forked well. When imports have
started others, its children are executed anew instead and load for themselves, with a warning. Each zygote reaps its
children and tells the daemon how they ended; that they have ended, the daemon knows from their pidfds. Decision 0001
has the reasons.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes.bootstrap import ENVIRONMENT, STREAM, WORKER
from prefetchd.processes.environment import enter, read_environment
from prefetchd.processes.orphans import become_subreaper
from prefetchd.processes.stack_dumps import answer_with_stacks
from prefetchd.wire.framing import close_all, send
from prefetchd.wire.messages import PLANNER, LoadFailed, Ready, SpawnStream, SpawnWorker
from prefetchd.wire.program_layout import Environment
from prefetchd.wire.stream_spec import StreamSpec, decode_spec, encode_spec
from prefetchd.wire.worker_status import IMPORTING
from prefetchd.workers.process_setup import (
    die_first_for_memory,
    die_with_parent,
    leave_signals_to_daemon,
    name_process,
    outlive_parent,
    own_memory_bytes,
    unforkable_threads,
)
from prefetchd.workers.program import Program, load_program
from prefetchd.workers.program_files import adopt_files, files_but, reopen_files
from prefetchd.workers.worker_status_writer import map_worker_status
from prefetchd.workers.zygote_children import Children

_multiprocessing: Any = importlib.import_module("multiprocessing.util")


def main(role: str, parent: str, *arguments: str) -> None:
    """Runs an executed child: `role`, the expected parent's pid, then descriptors and numbers."""
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
    if role == WORKER:
        map_worker_status(note_fd).phase(IMPORTING)
    enter(read_environment(program_fd))
    _prepare_for_programs()
    if role == STREAM:
        _serve_stream(sock, note_fd, program_fd, spec)
    else:
        program = load_program(program_fd, again=spec.order == "iterable")
        os.close(program_fd)
        serve_worker(sock, note_fd, program, spec, *place_and_workers)


# --- the three roles ------------------------------------------------------------------------------------------


def _serve_environment(sock: socket.socket, note_fd: int) -> None:
    name_process("prefetchd-env")
    become_subreaper()
    children = Children(sock, note_fd, ends_orphans=True)
    # It is started when a stream is about to come: nothing is asked of it before.
    _prepare_for_programs()
    # Killed with the daemon it could not end what its streams' workers have started. From here on it blocks no more,
    # and sees the daemon's end as that of its socket.
    outlive_parent()
    for message, fds in children.requests():
        if not isinstance(message, SpawnStream):
            close_all(fds)
            continue
        program_fd, note_fd = fds
        environment = read_environment(program_fd)
        _preload(environment.preload)
        kill_point("env.preloaded")
        spec = message.spec
        imports_s = time.process_time()

        def serve(
            child: socket.socket,
            environment: Environment = environment,
            note_fd: int = note_fd,
            program_fd: int = program_fd,
            spec: bytes = spec,
            imports_s: float = imports_s,
        ) -> None:
            enter(environment)
            _serve_stream(child, note_fd, program_fd, decode_spec(spec), imports_s)

        children.start(message.host, serve, STREAM, note_fd, program_fd, spec)
        close_all(fds)
    children.kill_all()
    children.end_strangers()


def _serve_stream(sock: socket.socket, note_fd: int, program_fd: int, spec: StreamSpec, imports_s: float = 0.0) -> None:
    """Serves as a stream zygote until the daemon closes the socket. `imports_s` of CPU time were spent for this process
    before it was forked."""
    from prefetchd.workers.user_code import load_program_or_fail

    name_process("prefetchd-zyg")
    become_subreaper()
    kill_point("zygote.started")
    ours = files_but(())
    program = load_program_or_fail(program_fd, spec)
    if isinstance(program, LoadFailed):
        send(sock, program)
        return
    # Workers that are forked from here must not share what the program has opened while it was loaded.
    adopt_files(files_but(ours))
    # Frozen objects are never moved between generations, so that forked workers leave their pages shared.
    gc.collect()
    gc.freeze()
    note = _what_threads_cost(imports_s)
    kill_point("zygote.loaded")
    send(sock, Ready(note))
    children = Children(sock, note_fd)
    for message, fds in children.requests():
        if isinstance(message, SpawnWorker):
            worker_index, workers, note_of_child = message.worker_index, message.workers, fds[0]

            def serve(
                child: socket.socket,
                note_fd: int = note_of_child,
                worker_index: int = worker_index,
                workers: int = workers,
            ) -> None:
                os.close(program_fd)
                connect_anew()
                serve_worker(child, note_fd, program, spec, worker_index, workers)

            numbers = (worker_index, workers)
            children.start(message.worker, serve, WORKER, note_of_child, program_fd, encode_spec(spec), numbers)
        close_all(fds)
    children.kill_all()
    children.end_strangers()


def _what_threads_cost(imports_s: float) -> str:
    """Returns the warning for trainers where no worker can be forked from this process, for its threads; empty where
    workers can. This process is what each worker will be: so much CPU time, `imports_s` before it was forked, and so
    much memory."""
    threads = unforkable_threads()
    if not threads:
        return ""
    own_s = imports_s + time.process_time()
    return (
        f"its imports have started threads ({', '.join(dict.fromkeys(threads))}), which no fork survives: each worker "
        f"is an interpreter of its own, which imports everything again, about {own_s:.1f} s of CPU and "
        f"{own_memory_bytes() / 1e6:.0f} MB of memory each. Where threads start at the first __getitem__ instead, "
        "workers are forked"
    )


def connect_anew() -> None:
    """Gives, in a forked child, proxies of multiprocessing's managers, and whoever else has asked for it, connections
    of their own from now on."""
    _multiprocessing._run_after_forkers()


def serve_worker(
    sock: socket.socket, note_fd: int, program: Program, spec: StreamSpec, worker_index: int, workers: int
) -> None:
    """Runs the worker at `worker_index` of so many, or the stream's planner, in a process of its own until the socket's
    end."""
    from prefetchd.workers.planner import run_planner
    from prefetchd.workers.worker import run_worker

    reopen_files()
    if worker_index == PLANNER:
        name_process("prefetchd-plan")
        run_planner(sock, spec, program, map_worker_status(note_fd))
        return
    name_process(f"prefetchd-w{worker_index}")
    die_first_for_memory()
    kill_point("worker.started")
    run_worker(sock, spec, program, worker_index, workers, note_fd)


# --- what they have in common ---------------------------------------------------------------------------------


@contextlib.contextmanager
def _kept_for_good() -> Iterator[None]:
    """Keeps what the block imports for as long as the process lives. The gc does not look through it, which would take
    a fifth of an import's time, and in each forked child a quarter of a second and a copy of all pages that have
    objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _prepare_for_programs() -> None:
    """Imports torch, and hooks what must be hooked before the user's modules are imported."""
    with _kept_for_good():
        importlib.import_module("prefetchd.workers.worker")
        importlib.import_module("prefetchd.workers.state_readers").hook_state_readers()


def _preload(modules: tuple[str, ...]) -> None:
    with _kept_for_good(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception:
                # It is only a head start: the program itself will import it, or say why it cannot.
                traceback.print_exc()


def _read_spec(fd: int) -> StreamSpec:
    """Reads the spec behind `fd`, and closes `fd`."""
    spec = os.pread(fd, 1 << 16, 0)
    os.close(fd)
    return decode_spec(spec)
