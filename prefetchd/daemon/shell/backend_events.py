"""Tells the engine what workers and zygotes say, and the log and the trainers what of it is for people."""

from __future__ import annotations

import logging
import os
import time

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.daemon.shell.stall_reports import StallReports
from prefetchd.daemon.shell.worker_output import WorkerOutput
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.plan.keys import HEAD
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.processes.stack_dumps import gist
from prefetchd.supervisor.backend import Look
from prefetchd.supervisor.oom_kills import OomKills
from prefetchd.supervisor.process_backend import ProcessBackend
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import (
    Filled,
    FillFailed,
    Measured,
    Message,
    PlanFailed,
    Planned,
    Program,
    TooLarge,
    Unpicklable,
    check_rows,
)
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.slot_layout import decode_row_layout
from prefetchd.wire.worker_status import WorkerStatus

EXECUTED = "executed workers"
SCARCE = "`ulimit -u` and the cgroup's pids.max bound processes, and each takes memory"

log = logging.getLogger("prefetchd")


class WorkerEvents:
    """Implements BackendEvents, for the backend that it makes."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        publishing: Publishing,
        rings: StreamRings,
        tracing: Tracing,
        *,
        nice: int,
    ) -> None:
        self._engine = engine
        self._rings = rings
        self._tracing = tracing
        self._oom_kills = OomKills(time.monotonic())
        self.backend = ProcessBackend(loop, self, nice=nice)
        self.stall_reports = StallReports(self.backend, self._name, publishing.send_if_clear)
        self.printed = WorkerOutput(engine, publishing)

    def fork_taken(self, pid: int) -> None:
        """Watches the memory group of the trainer's process `pid`: workers are forked from it, and are in that
        group."""
        self._oom_kills.watch(f"/proc/{pid}/cgroup")

    def host_ready(self, host: int, note: str) -> None:
        stream = self._engine.host_of(host)
        if note and stream is not None:
            log.warning("workers", extra={"fields": {"stream": stream.name, "note": note}})
            self.printed.tell(stream.number, 0, f"prefetchd: {note}", topic=EXECUTED)
        self._engine.host_ready(host)

    def host_not_started(self, host: int, reason: str) -> None:
        stream = self._engine.host_of(host)
        if self._engine.host_not_started(host, reason, time.monotonic()) and stream is not None:
            self._tell_not_started(stream, reason)

    def host_identified(self, host: int, fingerprint: str) -> None:
        self._engine.host_identified(host, fingerprint)
        kill_point("daemon.fork.identified")

    def program_written(self, host: int, program: Program, fd: int) -> None:
        stream = self._engine.host_of(host)
        if stream is None:
            os.close(fd)
            return
        try:
            self._rings.take_program(stream, program, fd)
        except ProtocolError as error:
            log.error("program", extra={"fields": {"stream": stream.name, "error": str(error)}})
            self._engine.program_refused(host, str(error))
            return
        self._engine.program_kept(stream.number)
        kill_point("daemon.program.kept")

    def program_refused(self, host: int, refusal: Unpicklable | TooLarge) -> None:
        self._engine.program_refused(host, refusal.reason if isinstance(refusal, Unpicklable) else "")

    def spare_ready(self, host: int) -> None:
        self._engine.spare_ready(host)

    def load_failed(self, stream: int, message: str, error: bytes) -> None:
        self._engine.load_failed(stream, message, error)

    def host_died(self, host: int, how: ProcessExit) -> None:
        self._engine.host_died(host, how, self._claim_oom_kill(how))

    def worker_ready(self, worker: int) -> None:
        self._engine.worker_ready(worker, time.monotonic())

    def worker_not_started(self, worker: int, reason: str) -> None:
        stream = self._engine.worker_not_started(worker, reason, time.monotonic())
        if stream is not None:
            self._tell_not_started(stream, reason)

    def _tell_not_started(self, stream: StreamState, reason: str) -> None:
        text = f"prefetchd: no process can be started for stream {stream.name!r}: {reason}; it is tried again. {SCARCE}"
        self.printed.tell(stream.number, 0, text)

    def worker_message(self, worker: int, message: Message) -> None:
        kill_point("daemon.answer.heard")
        try:
            _check_opaque(message)
            self._tracing.worker_tells(worker, message)
            self._engine.worker_message(worker, message, time.monotonic())
        except ProtocolError as error:
            log.error("worker", extra={"fields": {"worker": worker, "error": str(error)}})
            raise
        except Exception as error:
            # A fault of ours: it costs the stream on which it came to light, and nobody else.
            log.exception("worker", extra={"fields": {"worker": worker}})
            self._fail_stream_of(worker, error)
            raise ProtocolError(f"what the daemon cannot take: {error!r}") from error

    def _fail_stream_of(self, worker: int, error: Exception) -> None:
        stream = self._engine.stream_of_worker(worker)
        if stream is not None:
            text = f"the daemon cannot take what a worker said: {error!r}. That is a fault of prefetchd, not of yours"
            self._engine.load_failed(stream.number, text, b"")

    def worker_died(self, worker: int, how: ProcessExit, note: WorkerStatus) -> None:
        kill_point("daemon.death.heard")
        self._engine.worker_died(worker, how, time.monotonic(), note, self._claim_oom_kill(how))

    def looked(self, stream: int, worker: int, look: Look) -> None:
        self.stall_reports.looked(stream, worker, look)
        self._engine.worker_looked_at(worker, gist(look.stacks), sleeps=look.sleeps)

    def output(self, stream: int, worker: int, lines: list[str], left_out: int) -> None:
        self.printed.printed(stream, worker, lines, left_out)

    def tick(self, now_s: float) -> None:
        """Looks after processes, output and kills for memory. To be called several times a second."""
        self.backend.retire_idle(now_s)
        self.printed.tick(now_s)
        if self._oom_kills.look(now_s):
            # It may have been a trainer: then its fork still has its memory.
            self._engine.memory_is_short()

    def _claim_oom_kill(self, how: ProcessExit) -> int:
        """Returns the number of kills for memory by now if a process that ended like this may be one of them, else
        0."""
        return self._oom_kills.claim(time.monotonic()) if how.may_be_for_memory else 0

    def _name(self, stream: int) -> str:
        found = self._engine.streams.get(stream)
        return found.name if found is not None else str(stream)


def _check_opaque(message: Message) -> None:
    """Raises ProtocolError when what the engine only passes on is not what it should be."""
    if isinstance(message, (FillFailed, PlanFailed)):
        decode_exception(message.error)
    elif isinstance(message, Measured) and message.layout:
        decode_row_layout(message.layout)
    elif isinstance(message, Planned):
        if any(len(each) < HEAD.size for each in message.keys):
            raise ProtocolError("a planner tells of keys that are cut short")
    elif isinstance(message, Filled):
        check_rows("Filled.tasks", message.tasks, 4)
