"""Workers as processes: environment zygotes by environment, stream zygotes by stream, workers by number.

Runs in the daemon. Every child has a control socket (end of file ends it), a pidfd (its death is certain only when
this says so) and an output pipe.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import close_all
from prefetchd.wire.messages import (
    ChildEnded,
    LoadFailed,
    Message,
    Ready,
    Spawned,
    SpawnStream,
    SpawnWorker,
    UseRing,
)
from prefetchd.wire.program_layout import Environment, decode_environment
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd.workers.backend import ORPHANED, BackendEvents, Look, Watcher
from prefetchd.workers.child_process import ChildProcess
from prefetchd.workers.environment import digest_at_start
from prefetchd.workers.environment_zygote import EnvironmentZygote
from prefetchd.workers.looking import look
from prefetchd.workers.note import NO_NOTE, Note, NoteFile
from prefetchd.workers.program import read_environment

KEEP_ENVIRONMENT_S = 600.0
CLOSE_DEADLINE_S = 5.0


class _Host:
    """A stream's zygote; `child` is None until it was forked."""

    def __init__(self, environment: bytes) -> None:
        self.environment = environment
        self.child: ChildProcess | None = None
        self.note = NoteFile()
        self.workers: set[int] = set()


class ProcessBackend:
    """A Backend of processes (see workers.backend)."""

    def __init__(self, watcher: Watcher, events: BackendEvents, *, nice: int = 0) -> None:
        self._watcher = watcher
        self._events = events
        self._nice = nice
        self._zygotes: dict[bytes, EnvironmentZygote] = {}
        self._hosts: dict[int, _Host] = {}
        self._workers: dict[int, ChildProcess | None] = {}
        self._notes: dict[int, NoteFile] = {}
        self._stream_of: dict[int, int] = {}
        self._stopping: dict[int, bool] = {}
        self._dying: set[ChildProcess] = set()

    # --- Backend ---

    def prepare(self, environment: bytes) -> None:
        with contextlib.suppress(ProtocolError, OSError):
            decoded = decode_environment(environment)
            digest = digest_at_start(decoded)
            if digest not in self._zygotes:
                self._start_zygote(digest, decoded).unused_since_s = time.monotonic()

    def start_stream(self, stream: int, program_fd: int, spec: StreamSpec) -> None:
        environment = read_environment(program_fd)
        digest = digest_at_start(environment)
        zygote = self._zygotes.get(digest) or self._start_zygote(digest, environment)
        zygote.streams.add(stream)
        zygote.unused_since_s = None
        host = self._hosts[stream] = _Host(digest)
        message = SpawnStream(stream, os.fstat(program_fd).st_size, encode_spec(spec))
        zygote.child.send(message, (program_fd, host.note.fd))

    def start_worker(self, stream: int, worker: int, place: int, workers: int) -> None:
        host = self._hosts.get(stream)
        self._workers[worker] = None
        self._stream_of[worker] = stream
        if host is None or host.child is None:
            self._watcher.call_later(0.0, lambda: self._lost(worker, ORPHANED))
            return
        host.workers.add(worker)
        note = self._notes[worker] = NoteFile()
        host.child.send(SpawnWorker(worker, place, workers), (note.fd,))

    def lend_ring(self, worker: int, ring_fd: int, layout: bytes) -> None:
        child = self._workers.get(worker)
        if child is not None:
            child.send(UseRing(layout), (ring_fd,))

    def assign(self, worker: int, message: Message) -> None:
        child = self._workers.get(worker)
        if child is not None:
            child.send(message)

    def stop_worker(self, worker: int, *, kill: bool) -> None:
        child = self._workers.get(worker)
        if child is not None:
            child.kill() if kill else child.end_input()
        elif worker in self._workers:
            # Its zygote has yet to fork it, or to say so.
            self._stopping[worker] = kill or self._stopping.get(worker, False)

    def note(self, worker: int) -> Note:
        file = self._notes.get(worker)
        return file.read() if file is not None else NO_NOTE

    def pid(self, worker: int) -> int:
        child = self._workers.get(worker)
        return child.pid if child is not None else 0

    def look_at(self, stream: int, worker: int) -> None:
        child: ChildProcess | None = None
        note: NoteFile | None = None
        host = self._hosts.get(stream)
        if worker:
            child, note = self._workers.get(worker), self._notes.get(worker)
        elif host is not None:
            source = host if host.child is not None else self._zygotes.get(host.environment)
            child, note = (source.child, source.note) if source is not None else (None, None)

        def tell(found: Look) -> None:
            self._events.looked(stream, worker, found)

        if child is None or note is None:
            self._watcher.call_later(0.0, lambda: tell(Look()))
        else:
            look(self._watcher, child.pid, child.pidfd, note, tell)

    def drop_stream(self, stream: int) -> None:
        for worker in [each for each, its in self._stream_of.items() if its == stream]:
            self._bury(self._forget(worker))
        host = self._hosts.pop(stream, None)
        if host is None:
            return
        self._bury(host.child)
        host.note.close()
        zygote = self._zygotes.get(host.environment)
        if zygote is not None:
            zygote.streams.discard(stream)
            if not zygote.streams:
                zygote.unused_since_s = time.monotonic()

    @property
    def is_burying(self) -> bool:
        """True while processes live that were killed with their stream: their memory is not free yet."""
        return bool(self._dying)

    def retire_idle(self, now_s: float) -> None:
        for digest, zygote in list(self._zygotes.items()):
            if zygote.unused_since_s is not None and zygote.unused_since_s + KEEP_ENVIRONMENT_S <= now_s:
                del self._zygotes[digest]
                self._bury(zygote.child)
                zygote.reap()

    def close(self) -> None:
        for stream in {*self._hosts, *self._stream_of.values()}:
            self.drop_stream(stream)
        for zygote in self._zygotes.values():
            self._bury(zygote.child)
        deadline_s = time.monotonic() + CLOSE_DEADLINE_S
        for child in list(self._dying):
            child.is_dead(deadline_s - time.monotonic())
            child.close()
        for zygote in self._zygotes.values():
            zygote.reap()
        self._zygotes.clear()
        self._dying.clear()

    # --- zygotes ---

    def _start_zygote(self, digest: bytes, environment: Environment) -> EnvironmentZygote:
        zygote = self._zygotes[digest] = EnvironmentZygote(
            self._watcher,
            environment,
            lambda message, fds: self._environment_says(digest, message, fds),
            lambda _: self._environment_ended(digest),
            lambda text: self._zygote_printed(digest, text),
            nice=self._nice,
        )
        return zygote

    def _environment_says(self, digest: bytes, message: Message, fds: list[int]) -> None:
        if isinstance(message, Spawned):
            stream = message.child
            host = self._hosts.get(stream)
            if host is None or len(fds) != 3:
                # The stream was dropped meanwhile: closing its socket ends the new zygote.
                close_all(fds)
                return
            host.child = self._adopt(
                message.pid,
                fds,
                lambda message, fds: self._host_says(stream, message, fds),
                lambda how: self._host_ended(stream, how),
                lambda text: self._events.output(stream, 0, text),
            )
        elif isinstance(message, ChildEnded):
            host = self._hosts.get(message.child)
            if host is not None and host.child is not None:
                host.child.ended_as(message.how)
        else:
            close_all(fds)

    def _environment_ended(self, digest: bytes) -> None:
        zygote = self._zygotes.pop(digest, None)
        if zygote is None:
            return
        how = zygote.reap()
        zygote.child.close()
        for stream in list(zygote.streams):
            host = self._hosts.get(stream)
            if host is not None and host.child is None:
                del self._hosts[stream]
                host.note.close()
                self._events.host_died(stream, how)

    def _zygote_printed(self, digest: bytes, text: str) -> None:
        zygote = self._zygotes.get(digest)
        for stream in sorted(zygote.streams)[:1] if zygote is not None else ():
            self._events.output(stream, 0, text)

    def _host_says(self, stream: int, message: Message, fds: list[int]) -> None:
        if isinstance(message, Ready):
            self._events.stream_loaded(stream, message.note)
        elif isinstance(message, LoadFailed):
            self._events.load_failed(stream, message.message, message.error)
        elif isinstance(message, Spawned) and message.child in self._workers and len(fds) == 3:
            worker = message.child
            self._workers[worker] = self._adopt(
                message.pid,
                fds,
                lambda message, fds: self._worker_says(stream, worker, message, fds),
                lambda how: self._worker_ended(worker, how),
                lambda text: self._events.output(stream, worker, text),
            )
            if worker in self._stopping:
                self.stop_worker(worker, kill=self._stopping.pop(worker))
        elif isinstance(message, ChildEnded):
            child = self._workers.get(message.child)
            if child is not None:
                child.ended_as(message.how)
        else:
            close_all(fds)

    def _host_ended(self, stream: int, how: str) -> None:
        host = self._hosts.pop(stream, None)
        if host is None:
            return
        if host.child is not None:
            host.child.close()
        host.note.close()
        self._zygotes[host.environment].streams.discard(stream) if host.environment in self._zygotes else None
        for worker in list(host.workers):
            if self._workers.get(worker) is None:
                # It was never forked, or we were never told: then it has died with its zygote, unheard.
                self._lost(worker, ORPHANED)
        self._events.host_died(stream, how)

    # --- workers ---

    def _worker_says(self, stream: int, worker: int, message: Message, fds: list[int]) -> None:
        close_all(fds)
        if isinstance(message, Ready):
            self._events.worker_ready(worker)
        elif isinstance(message, LoadFailed):
            self._events.load_failed(stream, message.message, message.error)
        else:
            self._events.worker_message(worker, message)

    def _worker_ended(self, worker: int, how: str) -> None:
        stream = self._stream_of.get(worker)
        if stream in self._hosts:
            self._hosts[stream].workers.discard(worker)
        note = self.note(worker)
        child = self._forget(worker)
        if child is not None:
            child.close()
            self._events.worker_died(worker, how, note)

    def _lost(self, worker: int, how: str) -> None:
        """The worker never came to be. Silent when its stream was dropped meanwhile."""
        if worker in self._workers:
            self._forget(worker)
            self._events.worker_died(worker, how, NO_NOTE)

    def _forget(self, worker: int) -> ChildProcess | None:
        self._stream_of.pop(worker, None)
        self._stopping.pop(worker, None)
        note = self._notes.pop(worker, None)
        if note is not None:
            note.close()
        return self._workers.pop(worker, None)

    def _adopt(
        self,
        pid: int,
        fds: list[int],
        on_message: Callable[[Message, list[int]], None],
        on_end: Callable[[str], None],
        on_output: Callable[[str], None],
    ) -> ChildProcess:
        pidfd, sock, output = fds
        peer = socket.socket(fileno=sock)
        return ChildProcess(self._watcher, peer, pid, pidfd, output, on_message, on_end, on_output)

    # --- endings ---

    def _bury(self, child: ChildProcess | None) -> None:
        if child is not None:
            child.kill()
            self._dying.add(child)
            child.forsake(lambda: self._dying.discard(child))
