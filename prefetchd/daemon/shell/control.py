"""Answers what commands ask of the daemon: one request, one answer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from prefetchd import __version__
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.sockets.sessions import Session
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.messages import (
    LOG_LEVELS,
    PROTOCOL_VERSION,
    Done,
    Evict,
    Farewell,
    Hello,
    Message,
    Pause,
    Reload,
    Resume,
    SetLogLevel,
    Stop,
    Trace,
    TrainerEnvironment,
    Welcome,
)

log = logging.getLogger("prefetchd")


class Control:
    """Answers control connections. `stop(reason, now, keep)` ends the daemon; prepare(environment) begins to import
    what streams of that environment are likely to need; take_on(file, replace) takes a configuration on and returns the
    answer."""

    def __init__(
        self,
        engine: Engine,
        tracing: Tracing,
        generation: int,
        stop: Callable[[str, bool, bool], None],
        prepare: Callable[[bytes], None],
        take_on: Callable[[Path | None, bool], Message],
    ) -> None:
        self._engine = engine
        self._tracing = tracing
        self._generation = generation
        self._stop = stop
        self._prepare = prepare
        self._take_on = take_on

    def message(self, session: Session, message: Message) -> None:
        """Answers a request. Raises ProtocolError for what a control connection does not send, and CallerError for what
        cannot be done."""
        engine = self._engine
        match message:
            case Hello():
                session.send(Welcome(PROTOCOL_VERSION, __version__, os.getpid(), self._generation))
            case Stop(now, keep):
                session.send(Farewell("stopping"))
                self._stop("asked to stop", now, keep)
            case Pause(stream, drain):
                self._done(session, engine.drain(stream) if drain else engine.pause(stream))
            case Resume(stream):
                self._done(session, engine.resume(stream))
            case Evict(stream, force):
                self._done(session, engine.evict(stream, force=force))
            case Reload(config, replace):
                session.send(self._take_on(Path(os.fsdecode(config)) if config else None, replace))
            case Trace(for_ms):
                self._tracing.begin(session, for_ms / 1000)
            case SetLogLevel(level):
                _set_log_level(level)
                self._done(session, [])
            case TrainerEnvironment(environment):
                # The one that has no answer: a trainer that is still importing sends it, and goes on.
                self._prepare(environment)
            case _:
                raise ProtocolError(f"a control connection does not send {type(message).__name__}")

    @staticmethod
    def _done(session: Session, streams: list[str]) -> None:
        session.send(Done(tuple(name.encode("utf-8", "replace") for name in streams)))


def _set_log_level(level: str) -> None:
    if level not in LOG_LEVELS:
        raise CallerError(f"log level {level[:20]!r}; allowed: {', '.join(LOG_LEVELS)}")
    was = logging.getLevelName(log.level).lower()
    log.setLevel(level.upper())
    log.log(log.level, "log level", extra={"fields": {"level": level, "was": was}})
