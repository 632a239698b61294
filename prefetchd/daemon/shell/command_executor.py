"""Executes the engine's commands: each is passed to the session, the backend or the ring that it concerns."""

from __future__ import annotations

import logging
from collections import deque

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.daemon.shell.remote_shell import RemoteShell
from prefetchd.daemon.shell.stall_reports import StallReports
from prefetchd.daemon.shell.worker_output import WorkerOutput
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.supervisor.backend import Backend
from prefetchd.wire.messages import RingOpened
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_FILLING, SLOT_READY

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


class CommandExecutor:
    """Executes what the engine decides. Nothing here blocks."""

    def __init__(
        self,
        engine: Engine,
        backend: Backend,
        publishing: Publishing,
        rings: StreamRings,
        printed: WorkerOutput,
        stall_reports: StallReports,
        remote: RemoteShell,
    ) -> None:
        self._engine = engine
        self._backend = backend
        self._publishing = publishing
        self._rings = rings
        self._printed = printed
        self._stall_reports = stall_reports
        self._remote = remote

    def run_commands(self) -> None:
        """Executes all commands, and those that follow from them."""
        pending = deque(self._engine.take_commands())
        while pending:
            self.execute(pending.popleft())
            if not pending:
                pending.extend(self._engine.take_commands())

    def execute(self, command: c.Command) -> None:
        """Executes one command."""
        match command:
            case c.Assign(worker, message):
                kill_point("daemon.assign.claimed")
                self._backend.assign(worker, message)
                kill_point("daemon.assign.told")
            case c.WriteSlot(stream, slot, record):
                ring = self._rings.ring(stream)
                # Without a ring: somebody has cut it short, and the stream is about to fail.
                if ring is not None:
                    kill_point(BEFORE_RECORD[record.state])
                    ring.write_slot(slot, record)
                    kill_point(AFTER_RECORD[record.state])
                    self._rings.prefault(stream, ring)
            case c.Wake(number):
                session = self._publishing.sessions.get(number)
                if session is not None:
                    self._publishing.publish(session)
            case c.Send(number, message):
                session = self._publishing.sessions.get(number)
                if session is not None:
                    session.send(message)
            case c.ShareRing(number, stream):
                self._share_ring(number, stream)
            case c.CloseSession(number):
                session = self._publishing.sessions.get(number)
                if session is not None:
                    session.close_when_sent()
            case c.StartStream(stream, host):
                self._start_stream(stream, host)
            case c.StartSpare(stream, host, former):
                self._backend.start_spare(stream, host, former)
            case c.BindHost(host, stream):
                self._rings.resources_of(stream)
                self._backend.bind(host, stream)
            case c.DropHost(host):
                self._backend.drop_host(host)
            case c.AskProgram(host, limit_bytes):
                self._backend.write_program(host, limit_bytes)
            case c.Identify(stream):
                self._rings.identify(stream)
            case c.StartWorker(stream, host, worker, worker_index, workers):
                self._backend.start_worker(stream, host, worker, worker_index, workers)
            case c.StopWorker(worker, kill):
                self._backend.stop_worker(worker, kill=kill)
            case c.LookAt(stream, worker):
                self._backend.look_at(stream, worker)
            case c.LendRing(worker, stream):
                self._lend_ring(worker, stream)
            case c.LendSamples(worker, owner):
                self._backend.lend_samples(worker, owner)
            case c.OpenBridge() | c.CloseBridge() | c.LendRingTo() | c.TellBridge():
                self._remote.execute(command)
            case c.CreateRing():
                self._rings.create(command)
            case c.GrowRing(stream, slots):
                self._rings.grow(stream, slots)
            case c.ShrinkRing(stream, slots):
                self._rings.shrink(stream, slots)
            case c.ReportStall():
                self._stall_reports.name(command)
            case c.FreeSlot(stream, slot, generation):
                self._rings.free_slot(stream, slot, generation)
            case c.ParkStream(stream):
                self._backend.drop_stream(stream)
            case c.DropStream(stream):
                self._backend.drop_stream(stream)
                self._printed.forget(stream)
                self._rings.drop(stream)
            case c.Log(level, event, fields):
                log.log(getattr(logging, level.upper()), event, extra={"fields": dict(fields)})

    def _share_ring(self, number: int, stream: int) -> None:
        session, ring = self._publishing.sessions.get(number), self._rings.ring(stream)
        if ring is None:
            # The stream fails now, before anything is offered that nobody can read.
            self._rings.drop_cut()
        elif session is not None:
            session.send(RingOpened(ring.header.segment_bytes), [ring.shared_fd])
            kill_point("daemon.ring.shared")

    def _start_stream(self, stream: int, host: int) -> None:
        resources = self._rings.resources[stream]
        try:
            self._backend.start_stream(stream, host, resources.program_fd, resources.spec)
        except Exception as error:  # what a client wrote into its program must not end the daemon
            self._engine.load_failed(stream, f"the trainer's interpreter cannot be started: {error}", b"")

    def _lend_ring(self, worker: int, stream: int) -> None:
        ring, found = self._rings.ring(stream), self._engine.streams.get(stream)
        # A stream that was dropped since this was decided ends later in this round; so does one whose ring was cut
        # short.
        if ring is not None and found is not None:
            self._backend.lend_ring(worker, ring.writers_fd, found.layout)
