"""Describes what a forked zygote begins with, and makes it leave the trainer that it was forked from."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

from prefetchd.processes.environment import restrict
from prefetchd.wire.messages import Identified, Message
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers import class_names, detaching
from prefetchd.workers.process_setup import leave_signals_to_daemon, limit_threads, name_process
from prefetchd.workers.program import Program
from prefetchd.workers.program_files import adopt_files, files_but, reopen_files
from prefetchd.workers.state_readers import StateReaders, hook_state_readers

# What its own forked children do is not for others to call.
_multiprocessing: Any = importlib.import_module("multiprocessing.util")


class ProgramWork(Protocol):
    """Does with a program what the client can and workers cannot. Each call may take long, and is made in a process of
    its own."""

    def identify(self) -> Identified: ...

    def write(self, limit_bytes: int) -> tuple[Message, list[int]]:
        """Answers WriteProgram, with the descriptors that go with it: TooLarge for a program of more than
        `limit_bytes`. Raises UnpicklableError, NoSpaceError."""


class DaemonSearch(Protocol):
    """Looks for a daemon where none has answered yet."""

    @property
    def pause_s(self) -> float: ...

    @property
    def error(self) -> Exception | None: ...

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that the search needs."""

    def step(self) -> socket.socket | None:
        """Takes one step. Returns a connection, or None: not yet, or never if `error` says so. Does not block."""

    def close(self) -> None: ...


def _nothing() -> None:
    """Does nothing: the client has nothing to prepare."""


@dataclasses.dataclass
class Birth:
    """The things that a fork of the trainer begins with: descriptors, and the trainer's own objects. `trainer` is its
    pidfd; `mark` is RuntimePaths.process_mark, and `prepare` what the client wants done before anything is asked of the
    program.

    With a `search` no daemon has answered yet. The one that is found is introduced to the trainer: `session` is its end
    of a connection that the trainer talks into already.
    """

    spec: StreamSpec
    program: Program
    work: ProgramWork
    control: socket.socket
    owner: socket.socket
    output: int
    trainer: int
    search: DaemonSearch | None = None
    session: socket.socket | None = None
    state_readers: StateReaders = ()
    mark: str = "prefetchd"
    prepare: Callable[[], None] = _nothing

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that stay open."""
        sockets = [each.fileno() for each in (self.control, self.owner, self.session) if each is not None]
        searching = self.search.descriptors if self.search is not None else []
        return [*sockets, *searching, self.output, self.trainer]


def leave_trainer(birth: Birth) -> None:
    """Gives up what is the trainer's, and becomes a process of the daemon's."""
    collects = gc.isenabled()
    gc.disable()
    name_process("prefetchd-zyg")
    detaching.leave_session()
    detaching.reset_signals()
    leave_signals_to_daemon()
    # What the trainer wanted done at its own end.
    _multiprocessing._finalizer_registry.clear()
    program = birth.program
    parts = (program.dataset, program.collate_fn, program.worker_init_fn, program.index_sampler)
    detaching.give_up_descriptors(birth.descriptors, parts)
    adopt_files(files_but(birth.descriptors))
    reopen_files()
    detaching.unmap_devices()
    detaching.redirect_output(birth.output)
    os.close(birth.output)
    restrict(os.environb)
    limit_threads()
    hook_state_readers(birth.state_readers)
    # All that is forked from here on has it: by that others know whose these processes are, which have the trainer's
    # command line.
    os.memfd_create(birth.mark, os.MFD_CLOEXEC)
    birth.prepare()
    # What there is by now is never looked through again: that would copy all pages that have objects.
    gc.freeze()
    class_names.inherit()
    if collects:
        gc.enable()
