"""Carries commands about other machines to the bridges, and what these tell to the engine."""

from __future__ import annotations

import logging
import os
import time

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.worker_output import WorkerOutput
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.bridges import Bridges
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import FillFailed, Message
from prefetchd.wire.remote_exception import decode_exception

log = logging.getLogger("prefetchd")


class RemoteShell:
    """Implements BridgeEvents, for the bridges that it has."""

    def __init__(
        self,
        watcher: Watcher,
        engine: Engine,
        rings: StreamRings,
        printed: WorkerOutput,
        tracing: Tracing,
        address: str,
        *,
        insecure: bool,
        nice: int,
    ) -> None:
        """`address` is that of the cluster, as the configuration has it."""
        self._engine = engine
        self._rings = rings
        self._printed = printed
        self._tracing = tracing
        self.bridges = Bridges(watcher, self, address, insecure=insecure, nice=nice)

    def execute(self, command: c.OpenBridge | c.CloseBridge | c.LendRingTo | c.TellBridge) -> None:
        """Executes one command."""
        match command:
            case c.OpenBridge(stream, bridge):
                resources = self._rings.resources[stream]
                self.bridges.open(stream, bridge, resources.program_fd, resources.spec, os.environb)
            case c.CloseBridge(bridge):
                self.bridges.drop(bridge)
            case c.LendRingTo(bridge, stream):
                ring, found = self._rings.ring(stream), self._engine.streams.get(stream)
                if ring is not None and found is not None:
                    self.bridges.lend_ring(bridge, ring.writers_fd, found.layout)
            case c.TellBridge(bridge, message):
                kill_point("daemon.remote.claimed")
                self.bridges.tell(bridge, message)
                kill_point("daemon.remote.told")

    # --- what bridges tell ---

    def bridge_ready(self, bridge: int) -> None:
        self._engine.bridge_ready(bridge)

    def bridge_ended(self, bridge: int, reason: str, *, is_final: bool) -> None:
        kill_point("daemon.bridge.ended")
        self._engine.bridge_ended(bridge, reason, is_final=is_final)

    def remote_ready(self, worker: int, node: str, processor: str) -> None:
        self._engine.remote_ready(worker, node, processor)

    def remote_message(self, worker: int, message: Message, transfer_us: int) -> None:
        kill_point("daemon.remote.heard")
        try:
            if isinstance(message, FillFailed):
                decode_exception(message.error)
            self._tracing.remote_tells(worker, message)
            self._engine.remote_message(worker, message, transfer_us, time.monotonic())
        except ProtocolError as error:
            log.error("remote worker", extra={"fields": {"worker": worker, "error": str(error)}})
            raise

    def remote_data_differs(self, worker: int, task: int, path: str, what: str, *, is_recent: bool) -> None:
        self._engine.remote_data_differs(worker, task, path, what, is_recent=is_recent)

    def remote_waits(self, bridge: int, reason: str) -> None:
        self._engine.remote_waits(bridge, reason)

    def bridge_used(self, bridge: int, received_bytes: int, bridge_us: int, raylet_us: int) -> None:
        self._engine.bridge_used(bridge, received_bytes, bridge_us, raylet_us)

    def remote_revoked(self, bridge: int, task: int) -> None:
        self._engine.remote_revoked(bridge, task)

    def remote_late(self, worker: int, task: int) -> None:
        self._engine.remote_late(worker, task)

    def remote_ended(self, worker: int, reason: str, *, is_final: bool) -> None:
        self._engine.remote_ended(worker, reason, is_final=is_final)

    def remote_printed(self, stream: int, worker: int, lines: list[str], left_out: int) -> None:
        # What Ray says of itself in a bridge is for who runs the cluster; trainers are told what follows from it.
        self._printed.printed(stream, worker, lines, left_out, is_shown=worker != 0)
