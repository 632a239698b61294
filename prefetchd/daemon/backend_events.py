"""What workers and zygotes tell: the engine hears it, the log and the trainers what of it is for people."""

from __future__ import annotations

import logging
import time

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.loop import Loop
from prefetchd.daemon.publishing import Publishing
from prefetchd.daemon.tracing import Tracing
from prefetchd.daemon.wait_names import WaitNames
from prefetchd.daemon.worker_output import WorkerOutput
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.messages import Message
from prefetchd.workers.backend import Look
from prefetchd.workers.note import Note
from prefetchd.workers.oom_kills import OomKills
from prefetchd.workers.process_backend import ProcessBackend

log = logging.getLogger("prefetchd")


class WorkerEvents:
    """Implements BackendEvents, for the backend that it makes."""

    def __init__(self, loop: Loop, engine: Engine, publishing: Publishing, tracing: Tracing, *, nice: int) -> None:
        self._engine = engine
        self._tracing = tracing
        self._oom_kills = OomKills(time.monotonic())
        self.backend = ProcessBackend(loop, self, nice=nice)
        self.wait_names = WaitNames(self.backend, self._name, publishing.send_if_clear)
        self.printed = WorkerOutput(engine, publishing)

    def stream_loaded(self, stream: int, note: str) -> None:
        if note:
            log.warning("workers", extra={"fields": {"stream": self._name(stream), "note": note}})
        self._engine.stream_loaded(stream)

    def load_failed(self, stream: int, message: str, error: bytes) -> None:
        self._engine.load_failed(stream, message, error)

    def host_died(self, stream: int, how: str) -> None:
        self._engine.host_died(stream, how, self._claim_oom_kill(how))

    def worker_ready(self, worker: int) -> None:
        self._engine.worker_ready(worker, time.monotonic())

    def worker_message(self, worker: int, message: Message) -> None:
        kill_point("daemon.answer.heard")
        self._tracing.worker_tells(worker, message)
        try:
            self._engine.worker_message(worker, message, time.monotonic())
        except ProtocolError as error:
            log.error("worker", extra={"fields": {"worker": worker, "error": str(error)}})
            self.backend.stop_worker(worker, kill=True)

    def worker_died(self, worker: int, how: str, note: Note) -> None:
        kill_point("daemon.death.heard")
        self._engine.worker_died(worker, how, time.monotonic(), note, self._claim_oom_kill(how))

    def looked(self, stream: int, worker: int, look: Look) -> None:
        self.wait_names.looked(stream, worker, look)

    def output(self, stream: int, worker: int, text: str) -> None:
        for line in text.split("\n"):
            log.info("output", extra={"fields": {"stream": self._name(stream), "worker": worker, "line": line}})
        self.printed.tell(stream, worker, text)

    def tick(self, now_s: float) -> None:
        """What is to be looked after now and then."""
        self.backend.retire_idle(now_s)
        self._oom_kills.look(now_s)

    def _claim_oom_kill(self, how: str) -> int:
        """The kills for memory by now if a process that ended like this may be one of them, else 0."""
        return 0 if how.startswith("exited") else self._oom_kills.claim(time.monotonic())

    def _name(self, stream: int) -> str:
        found = self._engine.streams.get(stream)
        return found.name if found is not None else str(stream)
