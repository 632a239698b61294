"""Runs workers and planners as processes, by number: forked by the zygotes that ProcessHosts keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prefetchd.processes.process_exit import ProcessExit
from prefetchd.supervisor.backend import BackendEvents
from prefetchd.supervisor.child_output import OnOutput
from prefetchd.supervisor.child_process import ChildProcess, OnEnd, OnMessage
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.messages import LoadFailed, Message, Ready, UseRing, UseSamples
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.worker_status import NO_WORKER_STATUS, WorkerStatus

MESSAGE_LIMIT_CHARACTERS = 2000
"""The most that is kept of a text for people from a child that runs the user's code."""

Adopt = Callable[[int, list[int], OnMessage, OnEnd, OnOutput], ChildProcess]
"""Makes a ChildProcess of a pid and descriptors; the other arguments receive what it says."""


class ProcessWorkers:
    """The workers of all streams. A worker is `coming` until its zygote says that it was forked. `ended` is called with
    the host of a worker that is dead, before the events are."""

    def __init__(self, events: BackendEvents, adopt: Adopt, ended: Callable[[int, int], None]) -> None:
        self._events = events
        self._adopt = adopt
        self._ended_of = ended
        self._children: dict[int, ChildProcess | None] = {}
        self._notes: dict[int, WorkerStatusFile] = {}
        self._host_of: dict[int, int] = {}
        self._stream_of: dict[int, int] = {}
        self._stopping: dict[int, bool] = {}

    def __contains__(self, worker: int) -> bool:
        return worker in self._children

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._children))

    def is_of(self, worker: int, host: int) -> bool:
        """Returns True when the worker is forked by that host."""
        return self._host_of.get(worker) == host

    def is_expected(self, worker: int, host: int) -> bool:
        """Returns True when the host was asked to fork the worker, and has not said yet that it did."""
        return self.is_of(worker, host) and self.is_coming(worker)

    def expect(self, worker: int, stream: int, host: int) -> None:
        """Registers a worker that is about to be forked."""
        self._children[worker] = None
        self._stream_of[worker] = stream
        self._host_of[worker] = host

    def new_note(self, worker: int) -> WorkerStatusFile:
        """Makes the memory that the worker writes its status into. Raises OSError."""
        note = self._notes[worker] = WorkerStatusFile()
        return note

    def came(self, worker: int, pid: int, fds: list[int]) -> None:
        """Takes the process of a worker that its zygote has forked; takes `fds` over."""
        stream = self._stream_of[worker]
        self._children[worker] = self._adopt(
            pid,
            fds,
            lambda message, _: self._says(stream, worker, message),
            lambda how: self._ended(worker, how),
            lambda lines, left_out: self._events.output(stream, worker, lines, left_out),
        )
        # It was to be stopped before it was there.
        if worker in self._stopping:
            self.stop(worker, kill=self._stopping.pop(worker))

    def is_coming(self, worker: int) -> bool:
        return self._children.get(worker) is None

    def child(self, worker: int) -> ChildProcess | None:
        return self._children.get(worker)

    def note_file(self, worker: int) -> WorkerStatusFile | None:
        return self._notes.get(worker)

    def of_host(self, host: int) -> list[int]:
        return [worker for worker, its in self._host_of.items() if its == host]

    def of_stream(self, stream: int) -> list[int]:
        return [worker for worker, its in self._stream_of.items() if its == stream]

    def lend_samples(self, worker: int, owner: int) -> None:
        child, note = self._children.get(worker), self._notes.get(owner)
        if child is not None and note is not None:
            child.send(UseSamples(), (note.fd,))

    def lend_ring(self, worker: int, ring_fd: int, layout: bytes) -> None:
        child = self._children.get(worker)
        if child is not None:
            child.send(UseRing(layout), (ring_fd,))

    def assign(self, worker: int, message: Message) -> None:
        child = self._children.get(worker)
        if child is not None:
            child.send(message)

    def stop(self, worker: int, *, kill: bool) -> None:
        child = self._children.get(worker)
        if child is not None:
            child.kill() if kill else child.end_input()
        elif worker in self._children:
            # Its zygote has yet to fork it, or to say so.
            self._stopping[worker] = kill or self._stopping.get(worker, False)

    def note(self, worker: int) -> WorkerStatus:
        file = self._notes.get(worker)
        return file.read() if file is not None else NO_WORKER_STATUS

    def pid(self, worker: int) -> int:
        child = self._children.get(worker)
        return child.pid if child is not None else 0

    def reaped(self, worker: int, how: ProcessExit) -> None:
        """Records how the worker ended, as its zygote says."""
        child = self._children.get(worker)
        if child is not None:
            child.ended_as(how)

    def not_started(self, worker: int, reason: str) -> None:
        """Reports that its zygote cannot fork the worker. Silent when its stream was dropped meanwhile."""
        if worker in self._children and self._children[worker] is None:
            self._ended_of(self._host_of.get(worker, 0), worker)
            self.forget(worker)
            self._events.worker_not_started(worker, reason)

    def lost(self, worker: int, how: ProcessExit) -> None:
        """Reports that the worker never came to be. Silent when its stream was dropped meanwhile."""
        if worker in self._children:
            self.forget(worker)
            self._events.worker_died(worker, how, NO_WORKER_STATUS)

    def forget(self, worker: int) -> ChildProcess | None:
        """Forgets the worker. Returns its process, if there is one, for whoever buries it."""
        self._stream_of.pop(worker, None)
        self._host_of.pop(worker, None)
        self._stopping.pop(worker, None)
        note = self._notes.pop(worker, None)
        if note is not None:
            note.close()
        return self._children.pop(worker, None)

    def _says(self, stream: int, worker: int, message: Message) -> None:
        if isinstance(message, Ready):
            self._events.worker_ready(worker)
        elif isinstance(message, LoadFailed):
            self._events.load_failed(stream, *failure(message))
        else:
            self._events.worker_message(worker, message)

    def _ended(self, worker: int, how: ProcessExit) -> None:
        self._ended_of(self._host_of.get(worker, 0), worker)
        note = self.note(worker)
        child = self.forget(worker)
        if child is not None:
            child.close()
            self._events.worker_died(worker, how, note)


def failure(message: LoadFailed) -> tuple[str, bytes]:
    """Returns the text and the exception that are passed on, in one packet. Raises ProtocolError when the latter is
    none."""
    if message.error:
        decode_exception(message.error)
    return message.message[:MESSAGE_LIMIT_CHARACTERS], message.error
