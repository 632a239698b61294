"""A backend on a real loop, with real programs and rings; what it tells is written down in order."""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Callable
from typing import Any

from prefetchd_client.batches.tensors import BatchReader, private_copy
from prefetchd_client.forking.trainer_fork import ForkRequest, TrainerFork
from prefetchd_client.program.program_pickle import pickle_program, write_program

from prefetchd.daemon.process.loop import Loop
from prefetchd.ring.capacity import aligned_slot_bytes
from prefetchd.ring.segment import RingSegment, new_header
from prefetchd.supervisor.process_backend import ProcessBackend
from prefetchd.wire.messages import FILL_ROWS, FILL_WHOLE, MEASURE, Fill, Filled, Measured, Message
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_FILLING, SlotRecord
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd.wire.worker_status import WorkerStatus

STARTS = ("executed", "forked")
"""How a stream's zygote comes to be: from an interpreter of its own that loads the program, or from the trainer."""

DEADLINE_S = 40.0
FINGERPRINT = "c0" * 16

_numbers = itertools.count(1)


def new_number() -> int:
    """One that nothing else has."""
    return next(_numbers)


class Told:
    """BackendEvents that are written down: (event, arguments...)."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.in_call = False

    def __getattr__(self, event: str) -> Callable[..., None]:
        def write_down(*arguments: Any, **options: Any) -> None:
            assert not self.in_call, f"{event} was told from within a call of the backend"
            self.events.append((event, *arguments, *options.values()))

        return write_down


class Stage:
    """One backend and its loop, which wait at most `deadline_s` for what is to be told."""

    def __init__(
        self, start: str, paths: RuntimePaths, told: Told | None = None, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self.start = start
        self.deadline_s = deadline_s
        self.loop = Loop()
        self.told = told or Told()
        self.paths = paths
        self._backend = ProcessBackend(self.loop, self.told)
        self._until: Callable[[], Any] = lambda: True
        self._streams: list[HarnessedStream] = []
        self.loop.after_each(self._look)

    def call(self, name: str, *arguments: Any, **options: Any) -> None:
        """Calls the backend, which must not tell anything before it returns."""
        self.told.in_call = True
        try:
            getattr(self._backend, name)(*arguments, **options)
        finally:
            self.told.in_call = False

    def until(self, holds: Callable[[], Any]) -> Any:
        """Runs the loop until holds() is true, and gives what it is."""
        deadline_s = time.monotonic() + self.deadline_s
        self._until = lambda: holds() or time.monotonic() > deadline_s
        if not holds():
            # Wakes the loop although nothing happens.
            self.loop.call_later(self.deadline_s, lambda: None)
            self.loop.run()
        found = holds()
        assert found, f"not within {self.deadline_s} s; told at last: {self.told.events[-5:]}"
        return found

    def note(self, worker: int) -> WorkerStatus:
        return self._backend.note(worker)

    def pid(self, worker: int) -> int:
        return self._backend.pid(worker)

    def zygote_pid(self, host: int) -> int:
        """The process that the host is."""
        child = self._backend._hosts.get(host).child
        assert child is not None
        return child.pid

    def environment_pid(self, host: int) -> int:
        """The process that has forked the host."""
        hosts = self._backend._hosts
        return hosts.zygotes.get(hosts.get(host).environment).child.pid

    def event(self, *expected: Any) -> tuple[Any, ...]:
        """Waits for the first event that begins like this."""
        return self.until(lambda: next((each for each in self.told.events if each[: len(expected)] == expected), None))

    def has_told(self, *expected: Any) -> bool:
        return any(each[: len(expected)] == expected for each in self.told.events)

    def stream(self, dataset: Any, **options: Any) -> HarnessedStream:
        """A new stream, whose program is on its way to the backend."""
        stream = HarnessedStream(self, dataset, **options)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        self.call("close")
        for stream in self._streams:
            stream.let_go()
        self.loop.close()

    def _look(self) -> None:
        if self._until():
            self.loop.stop()


class HarnessedStream:
    """One stream of a stage: its program, workers and ring."""

    def __init__(
        self, stage: Stage, dataset: Any, *, batch_size: int = 4, collate_fn=None, worker_init_fn=None, **spec: Any
    ) -> None:
        self.stage = stage
        self.number, self.host = new_number(), new_number()
        self.spec = StreamSpec("0" * 32, seed=7, order="sequential", length=len(dataset), batch_size=batch_size, **spec)
        parts = {"dataset": dataset, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
        self.ring: RingSegment | None = None
        self.measure_told: Measured | None = None
        self._fork: TrainerFork | None = None
        if stage.start == "forked":
            request = ForkRequest(stage.paths, self.spec, parts, lambda: FINGERPRINT, lambda: b"", lambda: None)
            self._fork, _ = request.begin()
            message, fds = self._fork.hand_over()
            stage.call("take_fork", self.host, message.pid, fds)
            stage.call("bind", self.host, self.number)
            return
        _, fd, _ = write_program(stage.paths, current_environment(), *pickle_program(parts))
        try:
            self.begin(fd)
        finally:
            # The backend keeps no hold of it.
            os.close(fd)

    def begin(self, program_fd: int) -> None:
        """Hands the program over."""
        self.stage.call("start_stream", self.number, self.host, program_fd, self.spec)

    def __enter__(self) -> HarnessedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stage.call("drop_stream", self.number)
        self.let_go()
        if self.ring is not None:
            self.ring.close()

    def let_go(self) -> None:
        """The trainer has nothing to do with its fork any more."""
        if self._fork is not None:
            self._fork.close()

    def loaded(self) -> HarnessedStream:
        self.stage.event("host_ready", self.host)
        return self

    def start_workers(self, count: int) -> list[int]:
        """Workers that are ready, at indices 0, 1, ..."""
        self.loaded()
        workers = [new_number() for _ in range(count)]
        for worker_index, worker in enumerate(workers):
            self.start_worker(worker, worker_index, count)
        for worker in workers:
            self.stage.event("worker_ready", worker)
        return workers

    def start_worker(self, worker: int, worker_index: int = 0, count: int = 1) -> None:
        self.stage.call("start_worker", self.number, self.host, worker, worker_index, count)

    def assign(self, worker: int, *tasks: tuple[int, ...]) -> list[int]:
        """Gives the worker (kind, epoch, step, first, end, slot) tasks in one message; their numbers."""
        numbers = [new_number() for _ in tasks]
        self.stage.call("assign", worker, Fill(tuple((number, *task) for number, task in zip(numbers, tasks))))
        return numbers

    def answer(self, worker: int, task: int) -> Message | tuple[int, ...]:
        """What the worker says of the task: its row of a Filled, or another message."""
        return self.stage.until(lambda: self._answer(worker, task))

    def _answer(self, worker: int, task: int) -> Message | tuple[int, ...] | None:
        for event, *arguments in self.stage.told.events:
            if event == "worker_message" and arguments[0] == worker:
                message = arguments[1]
                if isinstance(message, Filled):
                    for row in message.tasks:
                        if row[0] == task:
                            return row
                elif getattr(message, "task", None) == task:
                    return message
        return None

    def has_filled(self, worker: int, task: int) -> bool:
        told = (each[2] for each in self.stage.told.events if each[:2] == ("worker_message", worker))
        return any(row[0] == task for each in told if isinstance(each, Filled) for row in each.tasks)

    def measure(self, worker: int, step: int = 0) -> Measured:
        (task,) = self.assign(worker, (MEASURE, 0, step, 0, self.spec.batch_size or 1, 0))
        told = self.answer(worker, task)
        assert isinstance(told, Measured)
        self.measure_told = told
        return told

    def make_ring(self, workers: list[int], *, slots: int = 8, slot_bytes: int | None = None) -> RingSegment:
        """A ring for what was measured, lent to the workers."""
        assert self.measure_told is not None
        layout, spec = self.measure_told.layout, encode_spec(self.spec)
        size = aligned_slot_bytes(slot_bytes or self.measure_told.payload_bytes)
        header = new_header(slots, size, self.spec.fingerprint, 1, spec, layout, "")
        name = self.stage.paths.segment_name("ring", f"{os.getpid():x}-{self.number:x}")
        ring = self.ring = RingSegment.create(name, header, spec, layout, slots)
        while not ring.is_reserved:
            ring.reserve_step()
        for slot in range(slots):
            ring.write_slot(slot, SlotRecord(SLOT_FILLING))
        self.lend(workers)
        return ring

    def lend(self, workers: list[int]) -> None:
        assert self.ring is not None
        assert self.measure_told is not None
        for worker in workers:
            fd = os.dup(self.ring.shared_fd)
            self.stage.call("lend_ring", worker, fd, self.measure_told.layout)
            os.close(fd)

    def chain(self, *slots: int) -> None:
        """Makes these slots the place of one batch."""
        assert self.ring is not None
        for slot, following in zip(slots, [*slots[1:], -1]):
            first = slot == slots[0]
            state, span = (SLOT_FILLING, len(slots)) if first else (SLOT_CONTINUED, 1)
            self.ring.write_slot(slot, SlotRecord(state, span, next_slot=following))

    def fill_whole(self, worker: int, step: int, slot: int) -> Message | tuple[int, ...]:
        (task,) = self.assign(worker, (FILL_WHOLE, 0, step, 0, self.spec.batch_size or 1, slot))
        return self.answer(worker, task)

    def fill_rows(self, worker: int, step: int, slot: int) -> Message | tuple[int, ...]:
        (task,) = self.assign(worker, (FILL_ROWS, 0, step, 0, self.spec.batch_size, slot))
        return self.answer(worker, task)

    def payload(self, slot: int, span: int = 1) -> Any:
        assert self.ring is not None
        return private_copy(self.ring.memory.batch(slot, span))

    def batch(self, slot: int, span: int = 1) -> Any:
        """What a trainer would see of the slot."""
        return BatchReader().read(self.payload(slot, span))


def wait_for_end(pidfds: list[int]) -> None:
    """Until each of these processes has ended. Closes the descriptors."""
    deadline_s = time.monotonic() + DEADLINE_S
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        os.close(pidfd)
        assert ended, "a process did not end"
