"""Implements the Backend of processes: hosts and workers, each kind of which has a class of its own.

Runs in the daemon. Every child has a control socket (end of file ends it), a pidfd (its death is certain only when this
says so) and an output pipe.
"""

from __future__ import annotations

from functools import partial

from prefetchd.processes.process_exit import ORPHANED
from prefetchd.supervisor.backend import BackendEvents, Look, Watcher
from prefetchd.supervisor.burials import Burials
from prefetchd.supervisor.child_process import ChildProcess
from prefetchd.supervisor.probe_process import look
from prefetchd.supervisor.process_hosts import ProcessHosts
from prefetchd.supervisor.process_workers import ProcessWorkers
from prefetchd.supervisor.stream_host import handed_child
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.messages import Message, SpawnWorker, WriteProgram
from prefetchd.wire.os_errors import why
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import WorkerStatus

CLOSE_DEADLINE_S = 5.0


class ProcessBackend:
    """A Backend of processes (see supervisor.backend)."""

    def __init__(self, watcher: Watcher, events: BackendEvents, *, nice: int = 0) -> None:
        self._watcher = watcher
        self._events = events
        self._burials = Burials(watcher)
        self._workers = ProcessWorkers(events, partial(handed_child, watcher), self._worker_ended)
        self._hosts = ProcessHosts(watcher, events, self._workers, self._burials, nice=nice)

    # --- hosts ---

    def prepare(self, environment: bytes) -> None:
        self._hosts.zygotes.prepare(environment)

    def start_stream(self, stream: int, host: int, program_fd: int, spec: StreamSpec) -> None:
        self._hosts.start(stream, host, program_fd, spec)

    def take_fork(self, host: int, pid: int, fds: list[int]) -> None:
        self._hosts.take_fork(host, pid, fds)

    def bind(self, host: int, stream: int) -> None:
        found = self._hosts.get(host)
        if found is not None:
            found.stream = stream

    def start_spare(self, stream: int, host: int, former: int) -> None:
        self._hosts.start_spare(stream, host, former)

    def write_program(self, host: int, limit_bytes: int) -> None:
        found = self._hosts.get(host)
        if found is not None and found.child is not None:
            found.child.send(WriteProgram(limit_bytes))

    # --- workers ---

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

    def lend_samples(self, worker: int, owner: int) -> None:
        self._workers.lend_samples(worker, owner)

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
        if worker:
            child, note = self._workers.child(worker), self._workers.note_file(worker)
        elif (found := self._hosts.process_of(stream)) is not None:
            child, note = found

        def tell(found: Look) -> None:
            self._events.looked(stream, worker, found)

        if child is None or note is None:
            self._watcher.call_later(0.0, lambda: tell(Look()))
        else:
            look(self._watcher, child.pid, child.pidfd, note, tell)

    # --- ends ---

    def drop_host(self, host: int) -> None:
        self._hosts.drop(host)

    def drop_stream(self, stream: int) -> None:
        for host in self._hosts.of_stream(stream):
            self._hosts.drop(host)
        # Those of hosts that are dead.
        for worker in self._workers.of_stream(stream):
            self._burials.bury(self._workers.forget(worker))

    @property
    def own_pids(self) -> set[int]:
        """The children of this process that are reaped here."""
        return self._hosts.zygotes.pids

    @property
    def is_burying(self) -> bool:
        """True while processes live that were killed with their stream: their memory is not free yet."""
        return self._burials.are_under_way

    def retire_idle(self, now_s: float) -> None:
        self._hosts.zygotes.retire_idle(now_s)

    def close(self, *, leave_forks: bool = False) -> None:
        if leave_forks:
            self._hosts.leave_forks()
        for host in self._hosts:
            self._hosts.drop(host)
        self._hosts.spares.bury_all()
        for worker in self._workers:
            self._burials.bury(self._workers.forget(worker))
        self._hosts.zygotes.bury_all()
        self._burials.wait(CLOSE_DEADLINE_S)

    def _worker_ended(self, host: int, worker: int) -> None:
        found = self._hosts.get(host)
        if found is not None:
            found.workers.discard(worker)
