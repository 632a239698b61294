"""Workers without processes: the same tasks in the caller's own process, one at a time, in one known order.

For tests, and for a debugger. What this cannot give: the user's code sees this process's module path, directory and
variables, not its trainer's; and whatever would end a worker ends this process.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch

from prefetchd.wire.messages import Fill, LoadFailed
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.backend import KILLED, BackendEvents, Look, Watcher
from prefetchd.workers.fill import Filler
from prefetchd.workers.note import IDLE, NO_NOTE, Note, NoteWriter
from prefetchd.workers.program import Program
from prefetchd.workers.task_runner import Task, TaskRunner
from prefetchd.workers.torch_worker import as_torch_worker
from prefetchd.workers.user_code import UserCodeError, load_failed, load_program_or_fail

ENDED = "exited with 0"


class InlineBackend:
    """A Backend (see workers.backend) that is deterministic: each turn of the loop carries out one request, in the
    order in which they were made, and tells what came of it."""

    def __init__(self, watcher: Watcher, events: BackendEvents) -> None:
        self._watcher = watcher
        self._events = events
        self._streams: dict[int, _Stream] = {}
        self._workers: dict[int, _Worker] = {}
        # Whose it is, and what to do; a worker's requests begin with its stream's number.
        self._requests: deque[tuple[tuple[int, int], Callable[[], None]]] = deque()
        self._turn_is_due = False

    # --- Backend ---

    def prepare(self, environment: bytes) -> None:
        """Nothing: it is this process's own."""

    def start_stream(self, stream: int, program_fd: int, spec: StreamSpec) -> None:
        started = self._streams[stream] = _Stream(os.dup(program_fd), spec)
        self._request((stream, 0), lambda: self._load(stream, started))

    def start_worker(self, stream: int, worker: int, place: int, workers: int) -> None:
        started = self._workers[worker] = _Worker(stream)
        self._request((stream, worker), lambda: self._begin(worker, started, place, workers))

    def lend_ring(self, worker: int, ring_fd: int, layout: bytes) -> None:
        found = self._workers.get(worker)
        if found is not None and found.runner is not None:
            found.runner.use_ring(os.dup(ring_fd), layout)

    def assign(self, worker: int, tasks: Fill) -> None:
        found = self._workers.get(worker)
        if found is not None:
            for task, keys in zip(tasks.tasks, tasks.keys or itertools.repeat(b"")):
                self._request((found.stream, worker), self._task(worker, found, task, keys))

    def stop_worker(self, worker: int, *, kill: bool) -> None:
        found = self._workers.get(worker)
        if found is not None:
            owner = (found.stream, worker)
            if kill:
                self._forget(lambda each: each == owner)
            self._request(owner, lambda: self._end(worker, KILLED if kill else ENDED))

    def note(self, worker: int) -> Note:
        found = self._workers.get(worker)
        return found.note.read() if found is not None else NO_NOTE

    def pid(self, worker: int) -> int:
        return os.getpid() if worker in self._workers else 0

    def look_at(self, stream: int, worker: int) -> None:
        # Not a request like the others: whoever asks may be waiting for one of those.
        self._watcher.call_later(0.0, lambda: self._events.looked(stream, worker, Look(os.getpid(), "R", "")))

    def drop_stream(self, stream: int) -> None:
        self._forget(lambda each: each[0] == stream)
        for worker, found in list(self._workers.items()):
            if found.stream == stream:
                del self._workers[worker]
                found.close()
        dropped = self._streams.pop(stream, None)
        if dropped is not None:
            os.close(dropped.program_fd)

    def retire_idle(self, now_s: float) -> None:
        """Nothing here is kept for later."""

    def close(self) -> None:
        for stream in {*self._streams, *(each.stream for each in self._workers.values())}:
            self.drop_stream(stream)

    # --- one request a turn ---

    def _request(self, owner: tuple[int, int], act: Callable[[], None]) -> None:
        self._requests.append((owner, act))
        self._call_turn()

    def _forget(self, is_meant: Callable[[tuple[int, int]], bool]) -> None:
        self._requests = deque(each for each in self._requests if not is_meant(each[0]))

    def _call_turn(self) -> None:
        if self._requests and not self._turn_is_due:
            self._turn_is_due = True
            self._watcher.call_later(0.0, self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        if self._requests:
            _, act = self._requests.popleft()
            act()
        self._call_turn()

    # --- what is done in a turn ---

    def _load(self, stream: int, started: _Stream) -> None:
        # Only to see whether it loads: each worker loads its own, as if it were forked.
        with self._user_code(stream, 0):
            program = load_program_or_fail(started.program_fd, started.spec)
        if stream not in self._streams:
            return
        if isinstance(program, LoadFailed):
            self._events.load_failed(stream, program.message, program.error)
        else:
            started.is_loaded = True
            self._events.stream_loaded(stream, "")

    def _begin(self, worker: int, started: _Worker, place: int, workers: int) -> None:
        host = self._streams.get(started.stream)
        if host is None or not host.is_loaded:
            self._end(worker, "its stream is not loaded")
            return
        with self._user_code(started.stream, worker):
            failure = started.begin(host, place, workers)
        if worker not in self._workers:
            return
        if failure is None:
            self._events.worker_ready(worker)
        else:
            self._events.load_failed(started.stream, failure.message, failure.error)
            self._end(worker, ENDED)

    def _task(self, worker: int, found: _Worker, task: Task, keys: bytes) -> Callable[[], None]:
        def carry_out() -> None:
            assert found.runner is not None
            with self._user_code(found.stream, worker), found.as_torch_worker():
                answer = found.runner.run(task, keys)
            for aside in found.runner.asides(task[0]):
                if worker in self._workers:
                    self._events.worker_message(worker, aside)
            if worker in self._workers:
                self._events.worker_message(worker, answer)

        return carry_out

    def _end(self, worker: int, how: str) -> None:
        found = self._workers.pop(worker, None)
        if found is not None:
            self._forget(lambda each: each == (found.stream, worker))
            found.close()
            self._events.worker_died(worker, how, found.note.read())

    @contextlib.contextmanager
    def _user_code(self, stream: int, worker: int) -> Iterator[None]:
        """What the block prints becomes output; what it draws leaves this process's generators as they were.

        Whoever is told of the output may drop the stream or kill the worker: nothing may be said of them then.
        """
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                yield
        finally:
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])
        text = printed.getvalue().removesuffix("\n")
        if text:
            self._events.output(stream, worker, text)


class _Stream:
    """A program, loaded or yet to be."""

    def __init__(self, program_fd: int, spec: StreamSpec) -> None:
        self.program_fd = program_fd
        self.spec = spec
        self.is_loaded = False


class _Worker:
    """What a worker process has to itself; `runner` is None until it is ready."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.runner: TaskRunner | None = None
        self.note = NoteWriter()
        self.as_torch_worker: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def begin(self, host: _Stream, place: int, workers: int) -> LoadFailed | None:
        program = load_program_or_fail(host.program_fd, host.spec)
        if not isinstance(program, Program):
            return program
        self.as_torch_worker = lambda: as_torch_worker(host.spec, program, place, workers)
        filler = Filler(host.spec, program, note=self.note)
        try:
            with self.as_torch_worker():
                filler.init_worker(place)
        except UserCodeError as error:
            return load_failed(error)
        self.runner = TaskRunner(filler)
        self.note.phase(IDLE)
        return None

    def close(self) -> None:
        if self.runner is not None:
            self.runner.release_ring()
