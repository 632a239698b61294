"""Runs a stream's zygote and workers on a node, for the actor whose process this is.

The workers are the same processes as beside the daemon, executed and forked by the same code; only the ring is small,
and what they fill is taken out of it as bytes. The rules:

1. One thread has a loop, with all processes. Other threads hand it tasks, and wait for the answers.
2. A `lane` is the place of one worker. It has TASKS_A_LANE slots, one for each task that it may be given at a time.
3. A task whose worker has died is answered by Spent: it is made where the daemon is, which finds out what is to blame.
   So is one of which samples were left out or replaced: that they cannot be loaded here need not be so there.
4. Workers that die are started again, as one that was ended for a task that hangs. When none comes up, this node is of
   no use: NodeError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from prefetchd.daemon.process.loop import Loop
from prefetchd.processes.process_exit import ProcessExit, is_hopeless
from prefetchd.remote.node_ring import NodeRing
from prefetchd.supervisor.backend import Look
from prefetchd.supervisor.process_backend import ProcessBackend
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.framing import encode
from prefetchd.wire.messages import (
    BadSamples,
    Fill,
    Filled,
    FillFailed,
    Message,
    Program,
    Spent,
    TooLarge,
    Unfit,
    Unpicklable,
)
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd.wire.worker_status import WorkerStatus

TASKS_A_LANE = 2
STREAM, HOST = 1, 1
MOST_LINES = 2000
"""The most printed lines that are kept for the next answer."""


class NodeError(Exception):
    """This node cannot make the stream's batches; the message says why."""


@dataclasses.dataclass(frozen=True)
class NodeAnswer:
    """The answer to one task: a packet with the worker's message, the bytes of the batch if it was filled, and what
    was printed meanwhile."""

    packet: bytes
    payload: bytearray | None = None
    lines: tuple[str, ...] = ()
    left_out: int = 0


@dataclasses.dataclass(eq=False)
class _Task:
    row: FillTask
    keys: bytes
    slot: int
    answer: Future[Message] = dataclasses.field(default_factory=Future)
    left_out: str = ""


@dataclasses.dataclass(eq=False)
class _Lane:
    """The place of one worker: its number (0: none), whether it is ready, the tasks that it has, by number, and those
    that wait for it."""

    index: int
    worker: int = 0
    is_ready: bool = False
    deaths: int = 0
    tasks: dict[int, _Task] = dataclasses.field(default_factory=dict)
    waiting: deque[_Task] = dataclasses.field(default_factory=deque)


class NodeWorkers:
    """The workers of one stream on this node. Threads call fill(); each call blocks until its task is answered."""

    def __init__(self, program_fd: int, spec: StreamSpec, layout: bytes, slot_bytes: int, lanes: int) -> None:
        """Begins to load the program behind `program_fd`, which is taken over, whatever happens. Raises OSError."""
        self._spec = spec
        self._program_fd = program_fd
        self._lanes = [_Lane(index) for index in range(lanes)]
        try:
            self._ring = NodeRing(lanes * TASKS_A_LANE, slot_bytes, spec.fingerprint, encode_spec(spec), layout)
        except BaseException:
            os.close(program_fd)
            raise
        self._slots: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in self._lanes]
        for lane, free in enumerate(self._slots):
            for place in range(TASKS_A_LANE):
                free.put(lane * TASKS_A_LANE + place)
        self._asked: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._came_up: Future[None] = Future()
        self._numbers = 0
        self._broken = ""
        self._asking = threading.Lock()
        self._is_over = False
        self._lines: list[str] = []
        self._left_out = 0
        self._loop = Loop()
        self._backend = ProcessBackend(self._loop, self)
        self._thread = threading.Thread(target=self._run, name="prefetchd-node", daemon=True)
        self._thread.start()

    # --- other threads ---

    def wait(self) -> None:
        """Waits until the workers are ready. Raises NodeError when they never will be."""
        self._came_up.result()

    def fill(self, lane: int, row: tuple[int, ...], keys: bytes) -> NodeAnswer:
        """Has the lane's worker make a batch: `row` and `keys` as messages.Fill has them. Raises NodeError."""
        task = FillTask.from_row(row)
        slot = self._slots[lane].get()
        try:
            given = _Task(task, keys, slot)
            self._ask(lambda: self._give(self._lanes[lane], given))
            message = given.answer.result()
            payload = None
            if isinstance(message, Filled):
                ((_, payload_bytes, _, _),) = message.tasks
                payload = bytearray(memoryview(self._ring.payload(slot)).cast("B")[:payload_bytes])
        finally:
            self._slots[lane].put(slot)
        lines, left_out = self._take_lines()
        return NodeAnswer(encode(message), payload, lines, left_out)

    def abandon(self, lane: int, number: int) -> None:
        """Ends the lane's worker if it has the daemon's task of that number, which rule 3 answers then. Returns at
        once."""
        with contextlib.suppress(NodeError):
            self._ask(lambda: self._end_at(self._lanes[lane], number))

    def close(self) -> None:
        """Ends all processes, and waits for that. Idempotent."""
        with contextlib.suppress(NodeError):
            self._ask(self._loop.stop)
        self._thread.join()

    def _ask(self, what: Callable[[], None]) -> None:
        with self._asking:
            if self._is_over:
                raise NodeError(self._broken)
            self._asked.append(what)
            os.eventfd_write(self._wake_fd, 1)

    def _take_lines(self) -> tuple[tuple[str, ...], int]:
        with self._asking:
            lines, left_out = tuple(self._lines), self._left_out
            self._lines.clear()
            self._left_out = 0
        return lines, left_out

    # --- the loop's thread ---

    def _run(self) -> None:
        try:
            self._loop.watch(self._wake_fd, self._woken)
            self._backend.start_stream(STREAM, HOST, self._program_fd, self._spec)
            self._loop.run()
        except Exception as error:
            self._break(f"{type(error).__name__}: {error}")
        finally:
            self._break("the node's workers were closed")
            with self._asking:
                # From here on nobody wakes the loop; what was asked just now is answered.
                self._is_over = True
                self._break("")
            self._backend.close()
            self._ring.close()
            self._loop.close()
            os.close(self._program_fd)
            os.close(self._wake_fd)

    def _woken(self) -> None:
        os.eventfd_read(self._wake_fd)
        while self._asked:
            self._asked.popleft()()

    def _give(self, lane: _Lane, task: _Task) -> None:
        if self._broken:
            task.answer.set_exception(NodeError(self._broken))
        elif lane.is_ready:
            self._assign(lane, task)
        else:
            lane.waiting.append(task)

    def _assign(self, lane: _Lane, task: _Task) -> None:
        number = self._new_number()
        lane.tasks[number] = task
        row = task.row._replace(number=number, slot=task.slot).row
        self._backend.assign(lane.worker, Fill((row,), (task.keys,) if task.keys else ()))

    def _end_at(self, lane: _Lane, number: int) -> None:
        if any(task.row.number == number for task in lane.tasks.values()):
            self._backend.stop_worker(lane.worker, kill=True)

    def _new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _start(self, lane: _Lane) -> None:
        lane.worker, lane.is_ready = self._new_number(), False
        self._backend.start_worker(STREAM, HOST, lane.worker, lane.index, len(self._lanes))

    def _lane_of(self, worker: int) -> _Lane | None:
        return next((lane for lane in self._lanes if lane.worker == worker), None)

    def _break(self, reason: str) -> None:
        """Answers all that is asked, now and from now on, by NodeError."""
        self._broken = self._broken or reason
        error = NodeError(self._broken)
        if not self._came_up.done():
            self._came_up.set_exception(error)
        while self._asked:
            # Tasks that were on their way find that it is broken.
            self._asked.popleft()()
        for lane in self._lanes:
            for task in [*lane.tasks.values(), *lane.waiting]:
                if not task.answer.done():
                    task.answer.set_exception(error)
            lane.tasks.clear()
            lane.waiting.clear()

    # --- what the backend tells ---

    def host_ready(self, host: int, note: str) -> None:
        for lane in self._lanes:
            self._start(lane)

    def load_failed(self, stream: int, message: str, error: bytes) -> None:
        self._break(f"the program cannot be loaded here: {message}")

    def host_died(self, host: int, how: ProcessExit) -> None:
        self._break(f"the zygote {how}")

    def host_not_started(self, host: int, reason: str) -> None:
        self._break(f"no process can be started: {reason}")

    def worker_ready(self, worker: int) -> None:
        lane = self._lane_of(worker)
        if lane is None:
            return
        lane.is_ready, lane.deaths = True, 0
        fd = os.dup(self._ring.fd)
        try:
            self._backend.lend_ring(worker, fd, self._ring.layout)
        finally:
            os.close(fd)
        while lane.waiting:
            self._assign(lane, lane.waiting.popleft())
        if all(each.is_ready for each in self._lanes) and not self._came_up.done():
            self._came_up.set_result(None)

    def worker_not_started(self, worker: int, reason: str) -> None:
        self._break(f"no worker can be started: {reason}")

    def worker_message(self, worker: int, message: Message) -> None:
        lane = self._lane_of(worker)
        if lane is None:
            return
        if isinstance(message, Filled):
            for number, *rest in message.tasks:
                task = lane.tasks.pop(number, None)
                if task is not None:
                    filled = Filled(((task.row.number, *rest),), message.sample_times, message.opened)
                    task.answer.set_result(Spent(task.row.number, task.left_out) if task.left_out else filled)
            return
        number = getattr(message, "task", 0)
        if isinstance(message, BadSamples):
            if number in lane.tasks:
                text = message.texts[0].decode("utf-8", "replace") if message.texts else ""
                lane.tasks[number].left_out = text or "a sample is left out"
            return
        task = lane.tasks.pop(number, None)
        if task is not None:
            task.answer.set_result(_as_answered(message, task))

    def worker_died(self, worker: int, how: ProcessExit, note: WorkerStatus) -> None:
        lane = self._lane_of(worker)
        if lane is None:
            return
        for task in lane.tasks.values():
            task.answer.set_result(Spent(task.row.number))
        lane.tasks.clear()
        lane.deaths += 0 if lane.is_ready else 1
        if is_hopeless(lane.deaths, how):
            self._break(f"its workers end before they are ready: {how}")
        elif not self._broken:
            self._start(lane)

    def output(self, stream: int, worker: int, lines: list[str], left_out: int) -> None:
        with self._asking:
            room = MOST_LINES - len(self._lines)
            self._lines.extend(lines[:room])
            self._left_out += left_out + len(lines[room:])

    def host_identified(self, host: int, fingerprint: str) -> None:
        """Comes of forks of trainers alone, as the next three do."""

    def program_written(self, host: int, program: Program, fd: int) -> None:
        os.close(fd)

    def program_refused(self, host: int, refusal: Unpicklable | TooLarge) -> None: ...

    def spare_ready(self, host: int) -> None: ...

    def looked(self, stream: int, worker: int, look: Look) -> None: ...


def _as_answered(message: Message, task: _Task) -> Message:
    """Returns the worker's answer as one to the daemon's task. What is not the batch and no reason why there is none is
    answered by rule 3."""
    number = task.row.number
    if isinstance(message, Unfit):
        return dataclasses.replace(message, task=number)
    if isinstance(message, FillFailed):
        return FillFailed(number, message.error)
    return Spent(number)
