"""The daemon put together: sessions and workers tell the engine, and its commands are carried out here."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from prefetchd import __version__
from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.engine import Engine, Limits
from prefetchd.daemon.engine.trainers import Identity
from prefetchd.daemon.loop import Loop
from prefetchd.daemon.metrics import Birth, snapshot
from prefetchd.daemon.recovery import empty_programs, find_streams, reclaim_programs
from prefetchd.daemon.resources import SegmentNames, StreamResources
from prefetchd.daemon.sessions import Listener, Session
from prefetchd.daemon.status_segment import StatusSegment
from prefetchd.daemon.wait_names import WaitNames
from prefetchd.ring.segment import RingSegment
from prefetchd.wire.errors import NoSpaceError, PrefetchdError, ProtocolError
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.messages import (
    PROTOCOL_VERSION,
    Farewell,
    Hello,
    Message,
    Output,
    Program,
    RingOpened,
    Stop,
    Welcome,
)
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.segment_layout import DEPARTED, SLOT_CONTINUED, SLOT_FILLING, SLOT_READY
from prefetchd.workers.backend import Look
from prefetchd.workers.note import Note
from prefetchd.workers.oom_kills import OomKills
from prefetchd.workers.process_backend import ProcessBackend

STATUS_INTERVAL_S = 0.25
LOOK_AGAIN_S = 0.02
RECLAIM_AFTER_S = 2.0
BURIED_WITHIN_S = 2.0
BURIED_LOOK_AGAIN_S = 0.005
OUTPUT_LINES_A_SECOND = 20
# So that a second's lines fit into one packet.
OUTPUT_LINE_BYTES = 3000
# By the state that a slot's record is given.
BEFORE_RECORD = {
    SLOT_FILLING: "daemon.record.unclaimed",
    SLOT_CONTINUED: "daemon.record.unchained",
    SLOT_READY: "daemon.record.unready",
}
AFTER_RECORD = {
    SLOT_FILLING: "daemon.record.claimed",
    SLOT_CONTINUED: "daemon.record.chained",
    SLOT_READY: "daemon.record.ready",
}

log = logging.getLogger("prefetchd")


class Service:
    """One daemon. Implements SessionEvents and BackendEvents; `listener` is set by whoever opened the socket."""

    def __init__(
        self,
        loop: Loop,
        paths: RuntimePaths,
        limits: Limits,
        *,
        generation: int,
        nice: int = 0,
        memory_bytes: int | None = None,
        idle_exit_s: float | None = None,
        supervised: bool = False,
    ) -> None:
        self.loop = loop
        self.engine = Engine(limits, Identity(__version__, os.getpid(), generation, supervised))
        self.listener: Listener | None = None
        self._paths = paths
        self._generation = generation
        self._memory_bytes = memory_bytes
        self._idle_exit_s = idle_exit_s
        self._idle_since_s = time.monotonic()
        self._birth = Birth()
        self._backend = ProcessBackend(loop, self, nice=nice)
        self._oom_kills = OomKills(time.monotonic())
        self._wait_names = WaitNames(self._backend, self._name, self._send_if_clear)
        self._names = SegmentNames(paths)
        self._resources: dict[int, StreamResources] = {}
        self._wanting: set[int] = set()
        self._output = _OutputRate()
        self.status = StatusSegment(paths.status_segment, generation)
        loop.after_each(self._settle)
        self._adopt()
        self._tick()

    # --- SessionEvents ---

    def trainer_hello(self, session: Session, hello: Hello) -> None:
        if hello.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"this daemon (prefetchd {__version__}) speaks protocol {PROTOCOL_VERSION}, the client "
                f"{hello.protocol}: stop it with `prefetchd stop` and let the client start its own"
            )
        kill_point("daemon.hello.heard")
        # Whoever is started again at once must not meet its own dead predecessor.
        if self.listener is not None:
            self.listener.end_dead()
        self._look_for_the_dead()
        marks = next(
            (
                ring.marks(hello.consumer)
                for each in self._resources.values()
                if (ring := each.ring) is not None
                and ring.header.created_ns == hello.ring
                and 0 <= hello.consumer < ring.header.consumers
            ),
            (),
        )
        self.engine.hello(session.number, hello, time.monotonic(), marks)
        kill_point("daemon.hello.decided")

    def trainer_program(self, session: Session, program: Program, fd: int) -> None:
        stream = self.engine.stream_of(session.number)
        if stream is None:
            # Dropped meanwhile: the trainer is about to hear of that.
            os.close(fd)
            return
        resources = StreamResources(stream.spec)
        resources.take_program(program.name, fd, self._paths)
        kill_point("daemon.program.taken")
        former = self._resources.get(stream.number)
        if former is not None and former.program_fd >= 0:
            resources.close()
            raise ProtocolError("a second program")
        if former is not None:
            # Its ring was adopted, and the program had gone.
            resources.ring, former.ring = former.ring, None
        self._resources[stream.number] = resources
        self.engine.program_arrived(session.number)
        kill_point("daemon.program.arrived")

    def trainer_message(self, session: Session, message: Message) -> None:
        kill_point("daemon.message.heard")
        self.engine.message(session.number, message, time.monotonic())

    def control_message(self, session: Session, message: Message) -> None:
        if isinstance(message, Hello):
            session.send(Welcome(PROTOCOL_VERSION, __version__, os.getpid(), self._generation))
        elif isinstance(message, Stop):
            session.send(Farewell("stopping"))
            self.stop("asked to stop")
        else:
            raise ProtocolError(f"a control connection does not send {type(message).__name__}")

    def session_ready(self, session: Session) -> None:
        if session.number in self._wanting:
            self._publish(session)

    def session_ended(self, session: Session) -> None:
        assert self.listener is not None
        self.listener.sessions.pop(session.number, None)
        self._wanting.discard(session.number)
        stream = self.engine.stream_of(session.number)
        marks: tuple[int, ...] = ()
        stood: tuple[int, int, int] | None = None
        alive = False
        if stream is not None and session.number in stream.consumers:
            ring = self._ring(stream.number)
            if ring is not None:
                record = stream.consumers[session.number].record
                marks = ring.marks(record)
                about = ring.consumer_record(record)
                stood = (about.cursor, about.epoch, about.step)
                alive = ring.has_living_consumer(record) and not session.peer_is_dead
        owes_program = stream is not None and stream.program_from == session.number
        self.engine.session_closed(session.number, marks, time.monotonic(), alive=alive, stood=stood)
        if owes_program:
            empty = empty_programs(self._paths)
            self.loop.call_later(RECLAIM_AFTER_S, partial(reclaim_programs, self._paths, empty=empty))
        kill_point("daemon.session.ended")
        if alive:
            # Or it is about to die: its connection may just have been the first thing to go.
            self.loop.call_later(LOOK_AGAIN_S, self._look_for_the_dead)

    # --- BackendEvents ---

    def stream_loaded(self, stream: int, note: str) -> None:
        if note:
            log.warning("workers", extra={"fields": {"stream": self._name(stream), "note": note}})
        self.engine.stream_loaded(stream, time.monotonic())

    def load_failed(self, stream: int, message: str, error: bytes) -> None:
        self.engine.load_failed(stream, message, error)

    def host_died(self, stream: int, how: str) -> None:
        self.engine.host_died(stream, how, self._claim_oom_kill(how))

    def worker_ready(self, worker: int) -> None:
        self.engine.worker_ready(worker, time.monotonic())

    def worker_message(self, worker: int, message: Message) -> None:
        kill_point("daemon.answer.heard")
        try:
            self.engine.worker_message(worker, message, time.monotonic())
        except ProtocolError as error:
            log.error("worker", extra={"fields": {"worker": worker, "error": str(error)}})
            self._backend.stop_worker(worker, kill=True)

    def worker_died(self, worker: int, how: str, note: Note) -> None:
        kill_point("daemon.death.heard")
        self.engine.worker_died(worker, how, time.monotonic(), note, self._claim_oom_kill(how))

    def looked(self, stream: int, worker: int, look: Look) -> None:
        self._wait_names.looked(stream, worker, look)

    def _claim_oom_kill(self, how: str) -> int:
        """The kills for memory by now if a process that ended like this may be one of them, else 0."""
        return 0 if how.startswith("exited") else self._oom_kills.claim(time.monotonic())

    def output(self, stream: int, worker: int, text: str) -> None:
        for line in text.split("\n"):
            log.info("output", extra={"fields": {"stream": self._name(stream), "worker": worker, "line": line}})
        self._tell(stream, worker, text)

    def _tell(self, stream: int, worker: int, text: str) -> None:
        """Shows it to the stream's trainers, as far as the rate allows."""
        found = self.engine.streams.get(stream)
        if found is None or self.listener is None:
            return
        kept, dropped = self._output.admit(stream, text)
        if not kept:
            return
        for number in found.consumers:
            self._send_if_clear(number, Output(worker, kept, dropped))

    def _send_if_clear(self, number: int, message: Message) -> None:
        """Sends what is for people: a trainer that does not read must not be closed for it."""
        session = self._session(number)
        if session is not None and session.is_clear:
            session.send(message)

    # --- life ---

    def stop(self, reason: str) -> None:
        """Ends in order: sessions are told, streams dropped, then the loop stops."""
        if self.engine.stopping:
            return
        log.info("stopping", extra={"fields": {"reason": reason}})
        self.engine.stop(reason)
        kill_point("daemon.stop.begun")
        if self.listener is not None:
            self.listener.close()
        self.loop.call_later(0.0, self.loop.stop)

    def close(self) -> None:
        """Leaves nothing behind. After the loop has ended."""
        kill_point("daemon.close.begun")
        with contextlib.ExitStack() as ending:
            # In the other order; each one happens whatever becomes of those before it.
            ending.callback(self.status.close)
            ending.callback(reclaim_programs, self._paths)
            for resources in self._resources.values():
                ending.callback(resources.close)
            ending.callback(self._backend.close)
            if self.listener is not None:
                for session in list(self.listener.sessions.values()):
                    ending.callback(session.close)
                ending.callback(self.listener.close)

    def _adopt(self) -> None:
        """Goes on with the streams of a daemon that died on the same socket."""
        for resources in find_streams(self._paths, self._generation):
            stream = self.engine.adopt(resources.spec, resources.found(), time.monotonic())
            ring = resources.ring
            if stream is None or ring is None:
                resources.close()
                continue
            self._resources[stream.number] = resources
            kill_point("daemon.adopt.adopted")
            self.loop.in_between(partial(self._prepare, stream.number, resources, ring))

    def _look_for_the_dead(self) -> None:
        """Consumers without a connection, and writers of a dead daemon, that live no longer."""
        for stream in list(self.engine.streams.values()):
            ring = self._ring(stream.number)
            if ring is None:
                continue
            for record in list(stream.absents):
                if not ring.has_living_consumer(record):
                    self.engine.absent_died(stream.number, record, ring.marks(record), time.monotonic())
                elif ring.consumer_record(record).cursor == DEPARTED:
                    self.engine.absent_departed(stream.number, record, ring.marks(record), time.monotonic())
            if stream.former_grants and not ring.has_former_writers():
                self.engine.former_writers_gone(stream.number)

    def _ring(self, stream: int) -> RingSegment | None:
        resources = self._resources.get(stream)
        return resources.ring if resources is not None else None

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._look_for_the_dead()
        self.engine.tick(now_s)
        self._backend.retire_idle(now_s)
        self._oom_kills.look(now_s)
        self._settle()
        self.status.write(snapshot(self.engine, self._resources, self._backend, self._about()))
        sessions = self.listener.sessions if self.listener is not None else {}
        if self.listener is not None:
            self.listener.end_silent(now_s)
        if sessions or self.engine.streams:
            self._idle_since_s = now_s
        elif self._idle_exit_s is not None and now_s - self._idle_since_s > self._idle_exit_s:
            self.stop(f"idle for {self._idle_exit_s:.0f} s")
        self.loop.call_later(STATUS_INTERVAL_S, self._tick)

    def _about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "software": __version__,
            "protocol": PROTOCOL_VERSION,
            "generation": self._generation,
            "socket": str(self._paths.socket),
            "log": str(self._paths.log),
            **self._birth.about(),
            "sessions": len(self.listener.sessions) if self.listener is not None else 0,
        }

    def _name(self, stream: int) -> str:
        found = self.engine.streams.get(stream)
        return found.name if found is not None else str(stream)

    # --- commands ---

    def _settle(self) -> None:
        """Carries out all commands, and those that follow from them."""
        pending = deque(self.engine.take_commands())
        while pending:
            self._carry_out(pending.popleft())
            if not pending:
                pending.extend(self.engine.take_commands())

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.Assign(worker, message):
                kill_point("daemon.assign.claimed")
                self._backend.assign(worker, message)
                kill_point("daemon.assign.told")
            case c.WriteSlot(stream, slot, record):
                ring = self._resources[stream].ring
                assert ring is not None
                kill_point(BEFORE_RECORD[record.state])
                ring.write_slot(slot, record)
                kill_point(AFTER_RECORD[record.state])
            case c.Wake(number):
                session = self._session(number)
                if session is not None:
                    self._publish(session)
            case c.Send(number, message):
                session = self._session(number)
                if session is not None:
                    session.send(message)
            case c.ShareRing(number, stream):
                session = self._session(number)
                ring = self._resources[stream].ring
                if session is not None and ring is not None:
                    session.send(RingOpened(ring.header.segment_bytes), [ring.shared_fd])
                    kill_point("daemon.ring.shared")
            case c.CloseSession(number):
                session = self._session(number)
                if session is not None:
                    session.close_when_sent()
            case c.StartStream(stream):
                resources = self._resources[stream]
                try:
                    self._backend.start_stream(stream, resources.program_fd, resources.spec)
                except Exception as error:  # what a client wrote into its program must not end the daemon
                    self.engine.load_failed(stream, f"the trainer's interpreter cannot be started: {error}", b"")
            case c.StartWorker(stream, worker, place, workers):
                self._backend.start_worker(stream, worker, place, workers)
            case c.StopWorker(worker, kill):
                self._backend.stop_worker(worker, kill=kill)
            case c.LendRing(worker, stream):
                ring, found = self._resources[stream].ring, self.engine.streams.get(stream)
                assert ring is not None
                # Dropped since that was decided, the stream ends later in this round.
                if found is not None:
                    self._backend.lend_ring(worker, ring.writers_fd, found.layout)
            case c.CreateRing():
                self._once_buried(partial(self._create_ring, command), time.monotonic() + BURIED_WITHIN_S)
            case c.GrowRing(stream, slots):
                self._once_buried(partial(self._grow_ring, stream, slots), time.monotonic() + BURIED_WITHIN_S)
            case c.NameWait():
                self._wait_names.name(command)
            case c.Tell(stream, worker, text):
                self._tell(stream, worker, text)
            case c.ParkStream(stream):
                self._backend.drop_stream(stream)
            case c.DropStream(stream):
                self._backend.drop_stream(stream)
                self._output.forget(stream)
                dropped = self._resources.pop(stream, None)
                if dropped is not None:
                    dropped.close()
            case c.Log(level, event, fields):
                log.log(getattr(logging, level.upper()), event, extra={"fields": dict(fields)})

    def _session(self, number: int) -> Session | None:
        return self.listener.sessions.get(number) if self.listener is not None else None

    def _publish(self, session: Session) -> None:
        self._wanting.discard(session.number)
        while session.is_clear and self.engine.has_news(session.number):
            for message in self.engine.publications(session.number):
                kill_point("daemon.publish.leased")
                session.send(message)
                kill_point("daemon.publish.sent")
        if self.engine.has_news(session.number):
            self._wanting.add(session.number)

    def _once_buried(self, then: Callable[[], None], until_s: float) -> None:
        """then() once nobody of a dropped stream lives, or at `until_s`: the ring that has yielded its memory is mapped
        until its workers are dead."""
        if self._backend.is_burying and time.monotonic() < until_s:
            self.loop.call_later(BURIED_LOOK_AGAIN_S, partial(self._once_buried, then, until_s))
        else:
            then()

    def _create_ring(self, command: c.CreateRing) -> None:
        stream, resources = command.stream, self._resources.get(command.stream)
        if resources is None:
            return
        try:
            ring = resources.create_ring(
                self._names.next_ring(),
                command.batch_bytes,
                command.slot_bytes,
                command.layout,
                self._generation,
                self._budget_bytes(),
            )
        except PrefetchdError as error:
            self.engine.ring_failed(stream, error.code, str(error), getattr(error, "short_bytes", 0))
            return
        header = ring.header
        self.engine.ring_created(
            stream, header.slots, ring.wanted_slots, header.slot_bytes, time.monotonic(), header.created_ns
        )
        self.loop.in_between(lambda: self._prepare(stream, resources, ring))

    def _grow_ring(self, stream: int, slots: int) -> None:
        resources = self._resources.get(stream)
        ring = resources.ring if resources is not None else None
        if resources is None or ring is None:
            return
        try:
            resources.grow_ring(slots, self._budget_bytes())
        except NoSpaceError as error:
            self.engine.ring_short(stream, str(error), error.short_bytes)
            return
        self.loop.in_between(lambda: self._prepare(stream, resources, ring))

    def _prepare(self, stream: int, resources: StreamResources, ring: RingSegment) -> bool:
        """One step of reserving, then of prefaulting; True when nothing is left to do."""
        if resources.ring is not ring:
            return True
        if ring.is_reserved:
            return ring.prefault_step()
        try:
            slots = resources.reserve_step()
        except NoSpaceError as error:
            ring.stay()
            self.engine.ring_short(stream, str(error), error.short_bytes)
            return False
        self.engine.ring_reserved(stream, slots, time.monotonic())
        return False

    def _budget_bytes(self) -> int | None:
        if self._memory_bytes is None:
            return None
        rings = [each.ring.wanted_bytes for each in self._resources.values() if each.ring is not None]
        return max(0, self._memory_bytes - sum(rings))


class _OutputRate:
    """Keeps what a stream prints to its trainer down to a few lines a second."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[float, int, int]] = {}

    def admit(self, stream: int, text: str) -> tuple[str, int]:
        """What of `text` may go on now, and how many lines were dropped since the last that did."""
        now_s = time.monotonic()
        began_s, lines, dropped = self._windows.get(stream, (now_s, 0, 0))
        if now_s - began_s >= 1.0:
            began_s, lines = now_s, 0
        kept = []
        for line in text.split("\n"):
            if lines < OUTPUT_LINES_A_SECOND:
                kept.append(line.encode("utf-8", "replace")[:OUTPUT_LINE_BYTES].decode("utf-8", "ignore"))
                lines += 1
            else:
                dropped += 1
        told = dropped if kept else 0
        self._windows[stream] = (began_s, lines, dropped - told)
        return "\n".join(kept), told

    def forget(self, stream: int) -> None:
        """The stream is gone."""
        self._windows.pop(stream, None)
