"""Runs hosts, the zygotes of streams, as processes, by number: forked by environment zygotes, from trainers, or kept in
reserve by hosts that have died. Runs in the daemon."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from prefetchd.processes.descendants import end_session
from prefetchd.processes.environment import digest_at_start, read_environment
from prefetchd.processes.process_exit import ORPHANED, ProcessExit
from prefetchd.supervisor.backend import BackendEvents, Watcher
from prefetchd.supervisor.burials import Burials
from prefetchd.supervisor.child_output import OnOutput
from prefetchd.supervisor.child_process import ChildProcess, OnEnd, OnMessage
from prefetchd.supervisor.environment_zygotes import EnvironmentZygotes
from prefetchd.supervisor.process_workers import MESSAGE_LIMIT_CHARACTERS, ProcessWorkers, failure
from prefetchd.supervisor.spares import Spares
from prefetchd.supervisor.stream_host import StreamHost, foreign_child, handed_child
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.cache_directory import is_fingerprint
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import Descriptors, close_all
from prefetchd.wire.messages import (
    ChildEnded,
    Identified,
    LoadFailed,
    Message,
    NotSpawned,
    Program,
    Ready,
    Spare,
    Spawned,
    SpawnStream,
    TooLarge,
    Unpicklable,
    UseNote,
)
from prefetchd.wire.os_errors import why
from prefetchd.wire.stream_spec import StreamSpec, encode_spec

SCARCITIES = frozenset([errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
"""The errors for which no process can be had now, though it may be later."""


class ProcessHosts:
    """The hosts of all streams, with the environment zygotes and the spares that they come from; `workers` are those
    that they fork. A host is coming until its zygote says that it was forked."""

    def __init__(
        self, watcher: Watcher, events: BackendEvents, workers: ProcessWorkers, burials: Burials, *, nice: int
    ) -> None:
        self._watcher = watcher
        self._events = events
        self._workers = workers
        self._burials = burials
        self._nice = nice
        self.zygotes = EnvironmentZygotes(watcher, burials, self, nice=nice)
        self.spares = Spares(watcher, burials, nice=nice)
        self._hosts: dict[int, StreamHost] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._hosts))

    def get(self, host: int) -> StreamHost | None:
        return self._hosts.get(host)

    def of_stream(self, stream: int) -> list[int]:
        return [host for host, each in self._hosts.items() if each.stream == stream]

    def process_of(self, stream: int) -> tuple[ChildProcess, WorkerStatusFile] | None:
        """Returns the process that loads the stream, with its status: its host, or while that is coming the zygote that
        is to fork it. None when there is none."""
        found = next((each for each in self._hosts.values() if each.stream == stream), None)
        if found is None:
            return None
        if found.child is not None:
            return found.child, found.note
        zygote = self.zygotes.get(found.environment)
        return (zygote.child, zygote.note) if zygote is not None else None

    # --- coming ---

    def start(self, stream: int, host: int, program_fd: int, spec: StreamSpec) -> None:
        """Has the zygote of the program's environment fork the host. Raises OSError for what is no scarcity."""
        try:
            self._start(stream, host, program_fd, spec)
        except OSError as error:
            if error.errno not in SCARCITIES:
                raise
            self._cannot_start(host, error)

    def _start(self, stream: int, host: int, program_fd: int, spec: StreamSpec) -> None:
        environment = read_environment(program_fd)
        digest = digest_at_start(environment)
        zygote = self.zygotes.of(digest, environment)
        started = self._hosts[host] = StreamHost(stream, digest)
        self.zygotes.enter(host, digest)
        message = SpawnStream(host, os.fstat(program_fd).st_size, encode_spec(spec))
        zygote.child.send(message, (program_fd, started.note.fd))

    def take_fork(self, host: int, pid: int, fds: list[int]) -> None:
        """Takes a host that was forked from a trainer; takes `fds` over. Raises ProtocolError."""
        try:
            taken = StreamHost()
        except OSError as error:
            close_all(fds)
            self._cannot_start(host, error)
            return
        try:
            taken.child = foreign_child(self._watcher, pid, fds, *self._callbacks(host), nice=self._nice)
        except ProtocolError:
            taken.note.close()
            raise
        self._hosts[host] = taken
        taken.child.send(UseNote(), (taken.note.fd,))

    def start_spare(self, stream: int, host: int, former: int) -> None:
        """Lets the spare of `former`, which died, go on as the host."""
        spare = self.spares.take(former)
        try:
            started = self._hosts[host] = StreamHost(stream)
        except OSError as error:
            # As if it had died with the host: who has the program may be asked for it again.
            self._burials.bury_fork(spare)
            self._cannot_start(host, error)
            return
        if spare is None:
            self._watcher.call_later(0.0, lambda: self._ended(host, ORPHANED))
            return
        started.child = spare
        spare.tell(*self._callbacks(host))
        spare.send(UseNote(), (started.note.fd,))

    def _callbacks(self, host: int) -> tuple[OnMessage, OnEnd, OnOutput]:
        return (
            lambda message, fds: self._says(host, message, fds),
            lambda how: self._ended(host, how),
            lambda lines, left_out: self._printed(host, lines, left_out),
        )

    def _cannot_start(self, host: int, error: OSError) -> None:
        reason = why(error)
        self._watcher.call_later(0.0, lambda: self._events.host_not_started(host, reason))

    # --- what environment zygotes tell ---

    def zygote_says(self, digest: bytes, message: Message, fds: Descriptors) -> None:
        if isinstance(message, Spawned):
            self._came(digest, message, fds)
            return
        if isinstance(message, ChildEnded):
            found = self._hosts.get(message.child)
            if found is not None and found.environment == digest and found.child is not None:
                found.child.ended_as(ProcessExit.from_status(message.status))
        elif isinstance(message, NotSpawned):
            found = self._hosts.get(message.child)
            if found is not None and found.environment == digest and found.child is None:
                self._not_started(message.child, message.reason[:MESSAGE_LIMIT_CHARACTERS])

    def zygote_ended(self, host: int, how: ProcessExit) -> None:
        found = self._hosts.get(host)
        if found is not None and found.child is None:
            del self._hosts[host]
            found.note.close()
            self._events.host_died(host, how)

    def zygote_printed(self, host: int, lines: list[str], left_out: int) -> None:
        self._printed(host, lines, left_out)

    def _came(self, digest: bytes, message: Spawned, fds: Descriptors) -> None:
        host = message.child
        found = self._hosts.get(host)
        if found is None:
            # The stream was dropped meanwhile: closing its socket ends the new zygote.
            return
        if found.environment != digest or found.child is not None:
            raise ProtocolError(f"a zygote has forked host {host}, which it was not asked for")
        found.child = handed_child(self._watcher, message.pid, fds.take(), *self._callbacks(host))

    def _not_started(self, host: int, reason: str) -> None:
        found = self._hosts.pop(host)
        found.note.close()
        self.zygotes.leave(host, found.environment)
        self._events.host_not_started(host, reason)

    # --- what hosts tell ---

    def _printed(self, host: int, lines: list[str], left_out: int) -> None:
        found = self._hosts.get(host)
        if found is not None:
            self._events.output(found.stream, 0, lines, left_out)

    def _says(self, host: int, message: Message, fds: Descriptors) -> None:
        found = self._hosts.get(host)
        is_forked = found is not None and found.environment is None
        if isinstance(message, Spawned) and message.child in self._workers:
            if not self._workers.is_expected(message.child, host):
                raise ProtocolError(f"a zygote has forked worker {message.child}, which it was not asked for")
            self._workers.came(message.child, message.pid, fds.take())
            return
        if is_forked and isinstance(message, Program) and len(fds) == 1:
            (fd,) = fds.take()
            self._events.program_written(host, message, fd)
            return
        if is_forked and isinstance(message, Spare):
            if self.spares.came(host, message.pid, fds.take()):
                self._events.spare_ready(host)
            return
        # From here on no message carries descriptors that anybody takes. What only a fork may say is ignored from
        # others, and what concerns a worker counts only from the host that forks it.
        if isinstance(message, Ready):
            self._events.host_ready(host, message.note[:MESSAGE_LIMIT_CHARACTERS])
        elif isinstance(message, LoadFailed) and found is not None:
            self._events.load_failed(found.stream, *failure(message))
        elif isinstance(message, ChildEnded) and self._workers.is_of(message.child, host):
            self._workers.reaped(message.child, ProcessExit.from_status(message.status))
        elif isinstance(message, NotSpawned) and self._workers.is_of(message.child, host):
            self._workers.not_started(message.child, message.reason[:MESSAGE_LIMIT_CHARACTERS])
        elif is_forked and isinstance(message, Identified):
            if message.fingerprint and not is_fingerprint(message.fingerprint):
                raise ProtocolError("a fingerprint that is none")
            self._events.host_identified(host, message.fingerprint)
        elif is_forked and isinstance(message, Unpicklable):
            self._events.program_refused(host, Unpicklable(message.reason[:MESSAGE_LIMIT_CHARACTERS]))
        elif is_forked and isinstance(message, TooLarge):
            self._events.program_refused(host, message)

    # --- going ---

    def leave_forks(self) -> None:
        """Forgets hosts that were forked from trainers. The end of their socket tells them that their daemon is gone:
        those whose trainer is, too, end."""
        for host, found in list(self._hosts.items()):
            if found.environment is None and found.child is not None:
                del self._hosts[host]
                found.child.close()
                found.note.close()

    def drop(self, host: int) -> None:
        """Kills the host and its workers; no event about them follows. Of a host that has died, its spare is killed."""
        self.spares.bury(host)
        dropped = self._hosts.pop(host, None)
        if dropped is None:
            # It is dead, and its workers' deaths are still to be told.
            return
        for worker in self._workers.of_host(host):
            self._burials.bury(self._workers.forget(worker))
        bury = self._burials.bury_fork if dropped.environment is None else self._burials.bury
        bury(dropped.child)
        dropped.note.close()
        self.zygotes.leave(host, dropped.environment)

    def _ended(self, host: int, how: ProcessExit) -> None:
        found = self._hosts.pop(host, None)
        if found is None:
            return
        if found.child is not None:
            found.child.close()
            if found.environment is None:
                end_session(found.child.pid)
        found.note.close()
        self.zygotes.leave(host, found.environment)
        for worker in list(found.workers):
            if self._workers.is_coming(worker):
                # It was never forked, or we were never told: then it has died with its zygote, unheard.
                self._workers.lost(worker, ORPHANED)
        self._events.host_died(host, how)
