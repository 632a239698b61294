"""The small interface between the daemon and whatever runs workers: processes, or the daemon's own process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from prefetchd.wire.messages import Message
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.note import Note

UNEXPLAINED = "died"
"""How a process ended whose zygote could not tell, as it is dead too."""

PLANNER = -1
"""The place of a stream's planner among its workers."""

ORPHANED = "its zygote died"
"""How a worker ended that was never heard of: it may never have begun."""

KILLED = "killed by SIGKILL"
"""How a process ended that did nothing for it: somebody else did, or the kernel, for memory."""

MOST_DEATHS = 3
MOST_KILLS = 10
"""Deaths in a row, with nothing done in between, after which a process is not started again: of its own fault, and
killed from outside."""


def is_hopeless(deaths: int, how: str) -> bool:
    """True when a process that has died so often in a row, the last time like this, will die again."""
    return deaths > (MOST_KILLS if how in (KILLED, UNEXPLAINED) else MOST_DEATHS)


def told_of(how: str) -> str:
    """What happened to a process that ended like this, after its name."""
    return f"was {how}" if how.startswith("killed") else how


@dataclasses.dataclass(frozen=True)
class Look:
    """A child process from outside: `state` as proc(5) names them, "" when there is no process; `stacks` of all its
    threads as faulthandler writes them, or empty when it does not answer."""

    pid: int = 0
    state: str = ""
    stacks: str = ""


class Watcher(Protocol):
    """Calls back when a descriptor can be read; the daemon's loop, or a test's."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None: ...


class BackendEvents(Protocol):
    """What a backend tells. Called from the loop's thread, never from within a call of the backend."""

    def stream_loaded(self, stream: int, note: str) -> None: ...

    def load_failed(self, stream: int, message: str, error: bytes) -> None: ...

    def host_died(self, stream: int, how: str) -> None: ...

    def worker_ready(self, worker: int) -> None: ...

    def worker_message(self, worker: int, message: Message) -> None: ...

    def worker_died(self, worker: int, how: str, note: Note) -> None:
        """The death is certain: nothing of this worker can write to a slot any more. `note` is what it was at."""

    def looked(self, stream: int, worker: int, look: Look) -> None:
        """The answer to look_at."""

    def output(self, stream: int, worker: int, text: str) -> None:
        """Whole lines that the user's code printed; worker 0 is the zygote."""


class Backend(Protocol):
    """Starts streams and workers and carries messages to them. Nothing here blocks."""

    def prepare(self, environment: bytes) -> None:
        """A stream in this environment, encoded as in a program, is about to come: what takes long for that is begun.
        Silent when nothing can be."""

    def start_stream(self, stream: int, program_fd: int, spec: StreamSpec) -> None:
        """Loads the program; answered by stream_loaded, load_failed or host_died. Keeps no hold of program_fd."""

    def start_worker(self, stream: int, worker: int, place: int, workers: int) -> None:
        """Answered by worker_ready or worker_died, and by load_failed before that if worker_init_fn raised. At place
        PLANNER it is the stream's planner."""

    def lend_ring(self, worker: int, ring_fd: int, layout: bytes) -> None:
        """The worker, which is ready, maps the ring; keeps no hold of ring_fd."""

    def assign(self, worker: int, message: Message) -> None:
        """Fill tasks, or what a planner is asked. Answered, task by task, through worker_message."""

    def stop_worker(self, worker: int, *, kill: bool) -> None:
        """Ends the worker after the tasks that it has, or at once; answered by worker_died."""

    def note(self, worker: int) -> Note:
        """What the worker is at; an empty note when it is gone."""

    def pid(self, worker: int) -> int:
        """The worker's process, or 0 when there is none by now."""

    def look_at(self, stream: int, worker: int) -> None:
        """Finds out where the worker's process is, or for worker 0 the zygote's that loads the stream. Answered by
        looked, within about a second."""

    def drop_stream(self, stream: int) -> None:
        """Kills the stream's zygote and workers; no event about them follows."""

    def retire_idle(self, now_s: float) -> None:
        """Gives up what no stream has used for long."""

    def close(self) -> None:
        """Kills all that is left and waits, briefly, until it is gone."""
