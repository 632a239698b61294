"""Runs zygotes as processes: environment zygotes by environment, stream zygotes (hosts) by number, with their workers.

Runs in the daemon. Every child has a control socket (end of file ends it), a pidfd (its death is certain only when this
says so) and an output pipe.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial

from prefetchd.processes.descendants import end_session, end_tree
from prefetchd.processes.environment import digest_at_start, read_environment
from prefetchd.processes.process_exit import ORPHANED, REFUSED
from prefetchd.processes.worker_status_memory import WorkerStatusFile
from prefetchd.supervisor.backend import BackendEvents, Look, Watcher
from prefetchd.supervisor.child_output import silent
from prefetchd.supervisor.child_process import ChildProcess
from prefetchd.supervisor.environment_zygote import EnvironmentZygote
from prefetchd.supervisor.probe_process import look
from prefetchd.supervisor.process_workers import MESSAGE_LIMIT_CHARACTERS, ProcessWorkers, failure
from prefetchd.supervisor.stream_host import StreamHost, foreign_child, handed_child
from prefetchd.wire.cache_directory import is_fingerprint
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import close_all
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
    SpawnWorker,
    TooLarge,
    Unpicklable,
    UseNote,
    WriteProgram,
)
from prefetchd.wire.os_errors import why
from prefetchd.wire.program_layout import Environment, decode_environment
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd.wire.worker_status import WorkerStatus

SCARCITIES = frozenset([errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE])
"""The errors for which no process can be had now, though it may be later."""
HOW_LIMIT_CHARACTERS = 100
"""The most that is kept of how a child has ended, in the words of its zygote, which has run the user's code."""

KEEP_ENVIRONMENT_S = 600.0
CLOSE_DEADLINE_S = 5.0


class ProcessBackend:
    """A Backend of processes (see supervisor.backend)."""

    def __init__(self, watcher: Watcher, events: BackendEvents, *, nice: int = 0) -> None:
        self._watcher = watcher
        self._events = events
        self._nice = nice
        self._zygotes: dict[bytes, EnvironmentZygote] = {}
        self._hosts: dict[int, StreamHost] = {}
        self._workers = ProcessWorkers(events, partial(handed_child, watcher), self._worker_ended)
        self._dying: dict[ChildProcess, Callable[[], object]] = {}
        # What hosts have in reserve, by the host: it outlives that.
        self._spares: dict[int, ChildProcess] = {}

    # --- Backend ---

    def prepare(self, environment: bytes) -> None:
        with contextlib.suppress(ProtocolError, OSError):
            decoded = decode_environment(environment)
            digest = digest_at_start(decoded)
            if digest not in self._zygotes:
                self._start_zygote(digest, decoded).unused_since_s = time.monotonic()

    def start_stream(self, stream: int, host: int, program_fd: int, spec: StreamSpec) -> None:
        try:
            self._start_stream(stream, host, program_fd, spec)
        except OSError as error:
            if error.errno not in SCARCITIES:
                raise
            reason = why(error)
            self._watcher.call_later(0.0, lambda: self._events.host_not_started(host, reason))

    def _start_stream(self, stream: int, host: int, program_fd: int, spec: StreamSpec) -> None:
        environment = read_environment(program_fd)
        digest = digest_at_start(environment)
        zygote = self._zygotes.get(digest) or self._start_zygote(digest, environment)
        started = StreamHost(stream, digest)
        self._hosts[host] = started
        zygote.hosts.add(host)
        zygote.unused_since_s = None
        message = SpawnStream(host, os.fstat(program_fd).st_size, encode_spec(spec))
        zygote.child.send(message, (program_fd, started.note.fd))

    def take_fork(self, host: int, pid: int, fds: list[int]) -> None:
        try:
            taken = StreamHost()
        except OSError as error:
            close_all(fds)
            reason = why(error)
            self._watcher.call_later(0.0, lambda: self._events.host_not_started(host, reason))
            return
        try:
            taken.child = self._foreign(host, pid, fds)
        except ProtocolError:
            taken.note.close()
            raise
        self._hosts[host] = taken
        taken.child.send(UseNote(), (taken.note.fd,))

    def bind(self, host: int, stream: int) -> None:
        found = self._hosts.get(host)
        if found is not None:
            found.stream = stream

    def start_spare(self, stream: int, host: int, former: int) -> None:
        spare = self._spares.pop(former, None)
        try:
            started = self._hosts[host] = StreamHost(stream)
        except OSError as error:
            # As if it had died with the host: who has the program may be asked for it again.
            self._bury_fork(spare)
            reason = why(error)
            self._watcher.call_later(0.0, lambda: self._events.host_not_started(host, reason))
            return
        if spare is None:
            self._watcher.call_later(0.0, lambda: self._host_ended(host, ORPHANED))
            return
        started.child = spare
        spare.tell(
            lambda message, fds: self._host_says(host, message, fds),
            lambda how: self._host_ended(host, how),
            lambda lines, left_out: self._host_printed(host, lines, left_out),
        )
        spare.send(UseNote(), (started.note.fd,))

    def write_program(self, host: int, limit_bytes: int) -> None:
        found = self._hosts.get(host)
        if found is not None and found.child is not None:
            found.child.send(WriteProgram(limit_bytes))

    def start_worker(self, stream: int, host: int, worker: int, worker_index: int, workers: int) -> None:
        found = self._hosts.get(host)
        self._workers.expect(worker, stream, host)
        if found is None or found.child is None:
            self._watcher.call_later(0.0, lambda: self._workers.lost(worker, ORPHANED))
            return
        try:
            note = self._workers.new_note(worker)
        except OSError as error:
            reason = why(error)
            self._watcher.call_later(0.0, lambda: self._workers.not_started(worker, reason))
            return
        found.workers.add(worker)
        found.child.send(SpawnWorker(worker, worker_index, workers), (note.fd,))

    def lend_ring(self, worker: int, ring_fd: int, layout: bytes) -> None:
        self._workers.lend_ring(worker, ring_fd, layout)

    def assign(self, worker: int, message: Message) -> None:
        self._workers.assign(worker, message)

    def stop_worker(self, worker: int, *, kill: bool) -> None:
        self._workers.stop(worker, kill=kill)

    def note(self, worker: int) -> WorkerStatus:
        return self._workers.note(worker)

    def pid(self, worker: int) -> int:
        return self._workers.pid(worker)

    def look_at(self, stream: int, worker: int) -> None:
        child: ChildProcess | None = None
        note: WorkerStatusFile | None = None
        host = next((each for each in self._hosts.values() if each.stream == stream), None)
        if worker:
            child, note = self._workers.child(worker), self._workers.note_file(worker)
        elif host is not None and host.child is not None:
            child, note = host.child, host.note
        elif host is not None and host.environment in self._zygotes:
            zygote = self._zygotes[host.environment]
            child, note = zygote.child, zygote.note

        def tell(found: Look) -> None:
            self._events.looked(stream, worker, found)

        if child is None or note is None:
            self._watcher.call_later(0.0, lambda: tell(Look()))
        else:
            look(self._watcher, child.pid, child.pidfd, note, tell)

    def drop_host(self, host: int) -> None:
        self._bury_fork(self._spares.pop(host, None))
        dropped = self._hosts.pop(host, None)
        if dropped is None:
            # It is dead, and its workers' deaths are still to be told.
            return
        for worker in self._workers.of_host(host):
            self._bury(self._workers.forget(worker))
        bury = self._bury_fork if dropped.environment is None else self._bury
        bury(dropped.child)
        dropped.note.close()
        self._leave_zygote(host, dropped)

    def drop_stream(self, stream: int) -> None:
        for host in [number for number, each in self._hosts.items() if each.stream == stream]:
            self.drop_host(host)
        # Those of hosts that are dead.
        for worker in self._workers.of_stream(stream):
            self._bury(self._workers.forget(worker))

    def _leave_zygote(self, host: int, left: StreamHost) -> None:
        zygote = self._zygotes.get(left.environment) if left.environment is not None else None
        if zygote is not None:
            zygote.hosts.discard(host)
            if not zygote.hosts:
                zygote.unused_since_s = time.monotonic()

    @property
    def own_pids(self) -> set[int]:
        """The children of this process that are reaped here."""
        return {zygote.pid for zygote in self._zygotes.values()}

    @property
    def is_burying(self) -> bool:
        """True while processes live that were killed with their stream: their memory is not free yet."""
        return bool(self._dying)

    def retire_idle(self, now_s: float) -> None:
        for digest, zygote in list(self._zygotes.items()):
            if zygote.unused_since_s is not None and zygote.unused_since_s + KEEP_ENVIRONMENT_S <= now_s:
                del self._zygotes[digest]
                # Its memory may take long to be given back: nobody waits for that.
                self._bury(zygote.child, zygote.reap)

    def close(self) -> None:
        for host in list(self._hosts):
            self.drop_host(host)
        for host in list(self._spares):
            self._bury_fork(self._spares.pop(host))
        for worker in self._workers:
            self._bury(self._workers.forget(worker))
        for zygote in self._zygotes.values():
            self._bury(zygote.child, zygote.reap)
        deadline_s = time.monotonic() + CLOSE_DEADLINE_S
        for child, afterwards in list(self._dying.items()):
            child.is_dead(deadline_s - time.monotonic())
            child.close()
            afterwards()
        self._zygotes.clear()
        self._dying.clear()

    # --- zygotes ---

    def _start_zygote(self, digest: bytes, environment: Environment) -> EnvironmentZygote:
        zygote = EnvironmentZygote(
            self._watcher,
            environment,
            lambda message, fds: self._environment_says(digest, message, fds),
            lambda _: self._environment_ended(digest),
            lambda lines, left_out: self._zygote_printed(digest, lines, left_out),
            nice=self._nice,
        )
        self._zygotes[digest] = zygote
        return zygote

    def _environment_says(self, digest: bytes, message: Message, fds: list[int]) -> None:
        if isinstance(message, Spawned):
            host = message.child
            found = self._hosts.get(host)
            if found is None:
                # The stream was dropped meanwhile: closing its socket ends the new zygote.
                close_all(fds)
                return
            if found.environment != digest or found.child is not None:
                close_all(fds)
                raise ProtocolError(f"a zygote has forked host {host}, which it was not asked for")
            found.child = handed_child(
                self._watcher,
                message.pid,
                fds,
                lambda message, fds: self._host_says(host, message, fds),
                lambda how: self._host_ended(host, how),
                lambda lines, left_out: self._host_printed(host, lines, left_out),
            )
            return
        close_all(fds)
        if isinstance(message, ChildEnded):
            found = self._hosts.get(message.child)
            if found is not None and found.environment == digest and found.child is not None:
                found.child.ended_as(message.how[:HOW_LIMIT_CHARACTERS])
        elif isinstance(message, NotSpawned):
            found = self._hosts.get(message.child)
            if found is not None and found.environment == digest and found.child is None:
                self._host_not_started(message.child, message.reason[:MESSAGE_LIMIT_CHARACTERS])

    def _host_not_started(self, host: int, reason: str) -> None:
        found = self._hosts.pop(host)
        found.note.close()
        self._leave_zygote(host, found)
        self._events.host_not_started(host, reason)

    def _environment_ended(self, digest: bytes) -> None:
        zygote = self._zygotes.pop(digest, None)
        if zygote is None:
            return
        how = zygote.reap()
        if zygote.child.how.startswith(REFUSED):
            how = zygote.child.how
        zygote.child.close()
        for host in list(zygote.hosts):
            found = self._hosts.get(host)
            if found is not None and found.child is None:
                del self._hosts[host]
                found.note.close()
                self._events.host_died(host, how)

    def _zygote_printed(self, digest: bytes, lines: list[str], left_out: int) -> None:
        zygote = self._zygotes.get(digest)
        for host in sorted(zygote.hosts)[:1] if zygote is not None else ():
            self._host_printed(host, lines, left_out)

    # --- hosts ---

    def _foreign(self, host: int, pid: int, fds: list[int]) -> ChildProcess:
        return foreign_child(
            self._watcher,
            pid,
            fds,
            lambda message, fds: self._host_says(host, message, fds),
            lambda how: self._host_ended(host, how),
            lambda lines, left_out: self._host_printed(host, lines, left_out),
            nice=self._nice,
        )

    def _host_printed(self, host: int, lines: list[str], left_out: int) -> None:
        found = self._hosts.get(host)
        if found is not None:
            self._events.output(found.stream, 0, lines, left_out)

    def _host_says(self, host: int, message: Message, fds: list[int]) -> None:
        found = self._hosts.get(host)
        is_forked = found is not None and found.environment is None
        if isinstance(message, Spawned) and message.child in self._workers:
            if not self._workers.is_expected(message.child, host):
                close_all(fds)
                raise ProtocolError(f"a zygote has forked worker {message.child}, which it was not asked for")
            self._workers.came(message.child, message.pid, fds)
            return
        if is_forked and isinstance(message, Program) and len(fds) == 1:
            self._events.program_written(host, message, fds[0])
            return
        if is_forked and isinstance(message, Spare):
            self._spare_came(host, message.pid, fds)
            return
        # From here on no message carries descriptors that anybody takes. What only a fork may say is ignored from
        # others, and what concerns a worker counts only from the host that forks it.
        close_all(fds)
        if isinstance(message, Ready):
            self._events.host_ready(host, message.note[:MESSAGE_LIMIT_CHARACTERS])
        elif isinstance(message, LoadFailed) and found is not None:
            self._events.load_failed(found.stream, *failure(message))
        elif isinstance(message, ChildEnded) and self._workers.is_of(message.child, host):
            self._workers.reaped(message.child, message.how[:HOW_LIMIT_CHARACTERS])
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

    def _spare_came(self, host: int, pid: int, fds: list[int]) -> None:
        self._bury_fork(self._spares.pop(host, None))
        try:
            spare = foreign_child(
                self._watcher, pid, fds, lambda _, fds: close_all(fds), lambda _: None, silent, nice=self._nice
            )
        except ProtocolError:
            # It, or its host, has died meanwhile.
            return
        spare.tell(lambda _, fds: close_all(fds), lambda _: self._spare_ended(host, spare), silent)
        self._spares[host] = spare
        self._events.spare_ready(host)

    def _spare_ended(self, host: int, spare: ChildProcess) -> None:
        spare.close()
        if self._spares.get(host) is spare:
            del self._spares[host]

    def _host_ended(self, host: int, how: str) -> None:
        found = self._hosts.pop(host, None)
        if found is None:
            return
        if found.child is not None:
            found.child.close()
            if found.environment is None:
                end_session(found.child.pid)
        found.note.close()
        self._leave_zygote(host, found)
        for worker in list(found.workers):
            if self._workers.is_coming(worker):
                # It was never forked, or we were never told: then it has died with its zygote, unheard.
                self._workers.lost(worker, ORPHANED)
        self._events.host_died(host, how)

    # --- workers ---

    def _worker_ended(self, host: int, worker: int) -> None:
        found = self._hosts.get(host)
        if found is not None:
            found.workers.discard(worker)

    # --- endings ---

    def _bury_fork(self, child: ChildProcess | None) -> None:
        """Buries a zygote that is a trainer's fork, as _bury() does, with its session: the orphans of such a zygote are
        not given to us."""
        if child is not None:
            end_tree(child.pid)
            self._bury(child, partial(end_session, child.pid))

    def _bury(self, child: ChildProcess | None, afterwards: Callable[[], object] = lambda: None) -> None:
        """Kills the child, and calls afterwards() when it is dead. Does not wait for that."""
        if child is None:
            return

        def is_dead() -> None:
            if self._dying.pop(child, None) is not None:
                afterwards()

        child.kill()
        self._dying[child] = afterwards
        child.forsake(is_dead)
