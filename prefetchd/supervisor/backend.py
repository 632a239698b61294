"""Defines the small interface between the daemon and whatever runs workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from prefetchd.processes.process_exit import ProcessExit
from prefetchd.wire.messages import Message, Program, TooLarge, Unpicklable
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import WorkerStatus


@dataclasses.dataclass(frozen=True)
class Look:
    """A child process as seen from outside: `state` as proc(5) names them, "" when there is no process; `stacks` of all
    its threads as faulthandler writes them, or empty when it does not answer."""

    pid: int = 0
    state: str = ""
    stacks: str = ""

    @property
    def sleeps(self) -> bool:
        """True when the process waits for something that a signal ends."""
        return self.state == "S"


class Watcher(Protocol):
    """Calls back when a descriptor can be read, and knows the time; the daemon's loop, or a test's."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None: ...

    def now_s(self) -> float:
        """Returns the time by the clock that call_later goes by."""


class BackendEvents(Protocol):
    """Receives what a backend reports. Called from the loop's thread, never from within a call of the backend. A `host`
    is the zygote of a stream, by the number that the backend was given for it."""

    def host_ready(self, host: int, note: str) -> None:
        """The host has the program, and workers can be started from it."""

    def load_failed(self, stream: int, message: str, error: bytes) -> None: ...

    def host_died(self, host: int, how: ProcessExit) -> None: ...

    def host_not_started(self, host: int, reason: str) -> None:
        """No process can be had for the host: a limit, or memory. The host is gone."""

    def host_identified(self, host: int, fingerprint: str) -> None:
        """A host that was forked from a trainer knows the fingerprint of its program; empty: it never will."""

    def program_written(self, host: int, program: Program, fd: int) -> None:
        """The host has written its program, as write_program asked; the receiver owns `fd`."""

    def program_refused(self, host: int, refusal: Unpicklable | TooLarge) -> None:
        """The host does not write its program, though write_program asked for it; `refusal` says why."""

    def spare_ready(self, host: int) -> None:
        """The host has another zygote like itself in reserve (start_spare)."""

    def worker_ready(self, worker: int) -> None: ...

    def worker_not_started(self, worker: int, reason: str) -> None:
        """No process can be had for the worker, as with host_not_started. Its host lives on."""

    def worker_message(self, worker: int, message: Message) -> None:
        """The worker has sent `message`. Raises ProtocolError when that is no answer: the worker is killed for it."""

    def worker_died(self, worker: int, how: ProcessExit, note: WorkerStatus) -> None:
        """The worker is dead for certain: nothing of it can write to a slot any more. `note` is what it was doing."""

    def looked(self, stream: int, worker: int, look: Look) -> None:
        """The process that look_at asked about has been looked at."""

    def output(self, stream: int, worker: int, lines: list[str], left_out: int) -> None:
        """The user's code has printed whole lines; `left_out` counts those that were too many to be read. Worker 0 is a
        zygote."""


class Backend(Protocol):
    """Starts streams and workers and carries messages to them. Nothing here blocks."""

    def prepare(self, environment: bytes) -> None:
        """Starts what takes long for a stream in this environment, encoded as in a program, which is about to come.
        Fails silently when nothing can be started."""

    def start_stream(self, stream: int, host: int, program_fd: int, spec: StreamSpec) -> None:
        """Starts a host that loads the program; answered by host_ready, load_failed, host_died or host_not_started.
        Keeps no hold of program_fd. Raises OSError."""

    def take_fork(self, host: int, pid: int, fds: list[int]) -> None:
        """Takes a host that was forked from a trainer, with the descriptors of Forked, which are taken over whatever
        happens. Answered like start_stream, and by host_identified. Raises ProtocolError when they are not what they
        should be."""

    def bind(self, host: int, stream: int) -> None:
        """Makes the host this stream's."""

    def start_spare(self, stream: int, host: int, former: int) -> None:
        """Lets the zygote that the host `former`, which died, had in reserve go on as `host`. Answered like
        start_stream."""

    def write_program(self, host: int, limit_bytes: int) -> None:
        """Asks a host that was forked from a trainer to write its program, unless that is of more than `limit_bytes`,
        or, with 0, than there is comfortable room for. Answered by program_written or program_refused."""

    def start_worker(self, stream: int, host: int, worker: int, worker_index: int, workers: int) -> None:
        """Starts a worker. Answered by worker_ready, worker_died or worker_not_started, and by load_failed before that
        if worker_init_fn raised. With the `worker_index` PLANNER it is the stream's planner."""

    def lend_samples(self, worker: int, owner: int) -> None:
        """Lets the worker, which is ready, put samples where `owner` finds them, in its next task (messages.Fill, kind
        4)."""

    def lend_ring(self, worker: int, ring_fd: int, layout: bytes) -> None:
        """Makes the worker, which is ready, map the ring; keeps no hold of ring_fd."""

    def assign(self, worker: int, message: Message) -> None:
        """Sends fill tasks, or what a planner is asked. Answered, task by task, through worker_message."""

    def stop_worker(self, worker: int, *, kill: bool) -> None:
        """Ends the worker after the tasks that it has, or at once; answered by worker_died."""

    def note(self, worker: int) -> WorkerStatus:
        """Returns what the worker is doing; an empty status when it is gone."""

    def pid(self, worker: int) -> int:
        """Returns the pid of the worker's process, or 0 when there is none by now."""

    def look_at(self, stream: int, worker: int) -> None:
        """Looks where the worker's process is, or for worker 0 the zygote's that loads the stream. Answered by looked,
        within about a second."""

    def drop_host(self, host: int) -> None:
        """Kills the host and its workers; no event about them follows. Of a host that has died, what it had in reserve
        is killed."""

    def drop_stream(self, stream: int) -> None:
        """Kills the stream's hosts and workers; no event about them follows."""

    def retire_idle(self, now_s: float) -> None:
        """Gives up what no stream has used for long."""

    def close(self, *, leave_forks: bool = False) -> None:
        """Kills all that is left and waits, briefly, until it is gone. With `leave_forks` hosts that were forked from
        trainers live on without their workers: their trainers may hand them to another daemon."""
