"""Tells the engine what trainers say, together with what their records in the ring say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from prefetchd import __version__
from prefetchd.daemon.declared.declared_streams import DeclaredStreams
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.control import Control
from prefetchd.daemon.shell.leavers import Leavers
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.daemon.sockets.sessions import Session
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes.process_exit import UNEXPLAINED
from prefetchd.supervisor.backend import Backend
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.framing import Descriptors
from prefetchd.wire.messages import (
    PROTOCOL_VERSION,
    CloseCursor,
    Consumed,
    Forked,
    GiveBack,
    Goodbye,
    Hello,
    Message,
    Program,
)
from prefetchd.wire.runtime_paths import RuntimePaths

LOOK_AGAIN_S = 0.02

OTHER_NAMESPACE = (
    "this process is in another PID namespace than the daemon, which therefore cannot look after what is forked from "
    "it. Share the namespace (docker: --pid=container:NAME, compose: `pid: service:NAME`, Kubernetes: "
    "`shareProcessNamespace: true`), or set PREFETCHD_START=exec here: then workers are started where the daemon is"
)

log = logging.getLogger("prefetchd")


class TrainerEvents:
    """Implements SessionEvents; requests of commands go on to `control`."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        publishing: Publishing,
        rings: StreamRings,
        backend: Backend,
        fork_taken: Callable[[int], None],
        control: Control,
        tracing: Tracing,
        paths: RuntimePaths,
        declared: DeclaredStreams,
        leavers: Leavers,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._publishing = publishing
        self._rings = rings
        self._backend = backend
        self._fork_taken = fork_taken
        self._control = control
        self._tracing = tracing
        self._paths = paths
        self._declared = declared
        self._leavers = leavers

    def trainer_hello(self, session: Session, hello: Hello) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"this daemon (prefetchd {__version__}) speaks protocol {PROTOCOL_VERSION}, the client "
                f"{hello.protocol}: stop it with `prefetchd stop` and let the client start its own"
            )
        if hello.forks and session.peer_pid != hello.pid:
            raise CallerError(OTHER_NAMESPACE)
        kill_point("daemon.hello.heard")
        # A trainer that is started again at once must not meet its own dead predecessor.
        if self._publishing.listener is not None:
            self._publishing.listener.end_dead()
        self._rings.look_for_the_dead()
        # Nor may it join a stream that is about to fail.
        self._rings.drop_cut()
        if not session.is_open:
            # This session's peer was dead itself: its end has been told, and would not be told again.
            return
        if hello.spec:
            self._hello(session, hello)
        else:
            self._declared.attach(session, hello, self._hello)

    def _hello(self, session: Session, hello: Hello) -> None:
        marks = self._rings.marks_of(hello.ring, hello.consumer)
        self._engine.hello(session.number, hello, time.monotonic(), marks)
        until_s = self._engine.undecided_until_s(session.number)
        if until_s is not None:
            delay_s = max(0.0, until_s - time.monotonic())
            self._loop.call_later(delay_s, lambda: self._engine.decide_overdue(time.monotonic()))
        # The trainer has dropped what it was offered, or its record was another's.
        self._rings.clear_released_offers(session.number)
        kill_point("daemon.hello.decided")

    def trainer_program(self, session: Session, program: Program, fds: Descriptors) -> None:
        stream = self._engine.stream_of(session.number)
        if stream is None:
            # The stream was dropped meanwhile: the trainer is about to hear of that.
            return
        if not stream.requests.is_asked(session.number):
            raise ProtocolError("a program that nobody asked for")
        (fd,) = fds.take()
        self._rings.take_program(stream, program, fd)
        self._engine.program_arrived(session.number)
        kill_point("daemon.program.arrived")

    def trainer_fork(self, session: Session, fork: Forked, fds: Descriptors) -> None:
        kill_point("daemon.fork.heard")
        host = self._engine.fork_arrived(session.number)
        try:
            self._backend.take_fork(host, fork.pid, fds.take())
        except ProtocolError as error:
            # The fork may be dead by now. Its trainer is asked for another one, or for its program.
            log.warning("fork not taken", extra={"fields": {"session": session.number, "why": str(error)}})
            self._engine.fork_taken(session.number, host)
            self._engine.host_died(host, UNEXPLAINED)
            return
        self._fork_taken(fork.pid)
        self._engine.fork_taken(session.number, host)
        kill_point("daemon.fork.taken")

    def trainer_message(self, session: Session, message: Message) -> None:
        kill_point("daemon.message.heard")
        self._tracing.trainer_tells(session.number, message)
        self._engine.message(session.number, message, time.monotonic())
        if isinstance(message, Consumed):
            self._rings.clear_released_offers(session.number, message.released[1::3])
        elif isinstance(message, (CloseCursor, GiveBack, Goodbye)):
            self._rings.clear_released_offers(session.number)

    def control_message(self, session: Session, message: Message) -> None:
        self._control.message(session, message)

    def session_ready(self, session: Session) -> None:
        self._publishing.ready(session)

    def session_ended(self, session: Session) -> None:
        self._publishing.forget(session.number)
        self._tracing.ended(session)
        stream = self._engine.stream_of(session.number)
        marks: tuple[int, ...] = ()
        stood: tuple[int, int, int] | None = None
        locked = False
        if stream is not None and session.number in stream.consumers:
            ring = self._rings.ring(stream.number)
            if ring is not None:
                record = stream.consumers[session.number].record
                marks = ring.marks(record)
                about = ring.consumer_record(record)
                stood = (about.cursor, about.epoch, about.step)
                locked = ring.has_living_consumer(record)
        alive = locked and not session.peer_is_dead
        lives_on = session.pidfd >= 0 and not session.peer_is_dead
        self._engine.session_closed(
            session.number, marks, time.monotonic(), alive=alive, locked=locked, lives_on=lives_on, stood=stood
        )
        if stream is not None and stream.leaver_lives and stream.left_by_session == session.number:
            self._leavers.watch(stream.number, session.pidfd)
        kill_point("daemon.session.ended")
        if locked:
            # The peer may be about to die: its connection may just have been the first thing to go.
            self._loop.call_later(LOOK_AGAIN_S, self._rings.look_for_the_dead)
