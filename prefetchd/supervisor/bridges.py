"""Runs bridges, the processes that reach other machines for a stream, by number. Runs in the daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Protocol

from prefetchd.processes.bootstrap import BRIDGE_BOOTSTRAP
from prefetchd.processes.environment import read_environment, variables_at_start
from prefetchd.processes.process_exit import describe_exit
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.burials import Burials
from prefetchd.supervisor.child_process import ChildProcess
from prefetchd.supervisor.executed_child import ExecutedChild
from prefetchd.supervisor.process_workers import MESSAGE_LIMIT_CHARACTERS
from prefetchd.wire.cluster_address import CLUSTER_VARIABLES
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import decode
from prefetchd.wire.messages import (
    BridgeUsed,
    DataDiffers,
    LateAnswer,
    Message,
    OpenBridge,
    Ready,
    RemoteAnswer,
    RemoteEnded,
    RemotePrinted,
    RemoteReady,
    RemoteWaits,
    Revoked,
    Unreachable,
    UseRing,
)
from prefetchd.wire.os_errors import why
from prefetchd.wire.stream_spec import StreamSpec, encode_spec

CLOSE_DEADLINE_S = 5.0


class BridgeEvents(Protocol):
    """Receives what bridges tell. Called from the loop's thread, never from within a call of Bridges."""

    def bridge_ready(self, bridge: int) -> None: ...

    def bridge_ended(self, bridge: int, reason: str, *, is_final: bool) -> None:
        """The bridge is dead for certain: nothing of it can write to a slot any more."""

    def remote_ready(self, worker: int, node: str, processor: str) -> None: ...

    def remote_message(self, worker: int, message: Message, transfer_us: int) -> None:
        """The worker has answered. Raises ProtocolError when that is no answer: the bridge is killed for it."""

    def remote_data_differs(self, worker: int, task: int, path: str, what: str, *, is_recent: bool) -> None: ...

    def remote_waits(self, bridge: int, reason: str) -> None: ...

    def bridge_used(self, bridge: int, received_bytes: int, bridge_us: int, raylet_us: int) -> None: ...

    def remote_revoked(self, bridge: int, task: int) -> None: ...

    def remote_late(self, worker: int, task: int) -> None: ...

    def remote_ended(self, worker: int, reason: str, *, is_final: bool) -> None: ...

    def remote_printed(self, stream: int, worker: int, lines: list[str], left_out: int) -> None:
        """The user's code has printed on another machine; worker 0 is the bridge itself."""


class _Bridge:
    """One bridge's process, its stream, and why it ends if it has said so."""

    def __init__(self, stream: int, executed: ExecutedChild, child: ChildProcess) -> None:
        self.stream = stream
        self.executed = executed
        self.child = child
        self.reason = ""
        self.is_final = False


class Bridges:
    """The bridges of all streams, to the cluster at `address`."""

    def __init__(self, watcher: Watcher, events: BridgeEvents, address: str, *, insecure: bool, nice: int = 0) -> None:
        self._watcher = watcher
        self._events = events
        self._address = address
        self._insecure = insecure
        self._nice = nice
        self._burials = Burials(watcher)
        self._bridges: dict[int, _Bridge] = {}
        self._unopened: set[int] = set()

    def open(self, stream: int, bridge: int, program_fd: int, spec: StreamSpec, own: Mapping[bytes, bytes]) -> None:
        """Starts a bridge for the stream; answered by bridge_ready or bridge_ended. Keeps no hold of program_fd. `own`
        are this process's variables."""
        try:
            environment = read_environment(program_fd)
            variables = variables_at_start(environment)
            variables.update(
                {name: value for name, value in own.items() if os.fsdecode(name).startswith(CLUSTER_VARIABLES)}
            )
            path = json.dumps(list(environment.sys_path)).encode()
            before = [environment.executable, b"-c", BRIDGE_BOOTSTRAP.encode(), path, str(os.getpid()).encode()]
            executed = ExecutedChild(lambda control: [*before, str(control).encode()], variables, nice=self._nice)
        except (OSError, ProtocolError) as error:
            reason = why(error) if isinstance(error, OSError) else str(error)
            self._unopened.add(bridge)
            self._watcher.call_later(0.0, lambda: self._not_opened(bridge, reason))
            return
        child = ChildProcess(
            self._watcher,
            executed.sock,
            executed.pid,
            executed.pidfd,
            executed.output,
            lambda message, _: self._says(bridge, message),
            lambda _: self._ended(bridge),
            lambda lines, left_out: self._events.remote_printed(stream, 0, lines, left_out),
        )
        self._bridges[bridge] = _Bridge(stream, executed, child)
        child.send(OpenBridge(encode_spec(spec), self._address, self._insecure), (program_fd,))

    def lend_ring(self, bridge: int, ring_fd: int, layout: bytes) -> None:
        """Makes the bridge map the ring; keeps no hold of ring_fd."""
        self._send(bridge, UseRing(layout), (ring_fd,))

    def tell(self, bridge: int, message: Message) -> None:
        """Sends the bridge a message."""
        self._send(bridge, message)

    def _send(self, bridge: int, message: Message, fds: tuple[int, ...] = ()) -> None:
        found = self._bridges.get(bridge)
        if found is not None:
            found.child.send(message, fds)

    def drop(self, bridge: int) -> None:
        """Kills the bridge; no event about it follows."""
        self._unopened.discard(bridge)
        found = self._bridges.pop(bridge, None)
        if found is not None:
            self._burials.bury(found.child, found.executed.reap)

    def pid(self, bridge: int) -> int:
        """Returns the pid of the bridge's process, or 0 when there is none."""
        found = self._bridges.get(bridge)
        return found.child.pid if found is not None else 0

    @property
    def own_pids(self) -> set[int]:
        """The children of this process that are reaped here."""
        return {each.child.pid for each in self._bridges.values()}

    def close(self) -> None:
        """Kills all bridges and waits, briefly, until they are gone."""
        self._unopened.clear()
        for bridge in list(self._bridges):
            self.drop(bridge)
        self._burials.wait(CLOSE_DEADLINE_S)

    def _says(self, bridge: int, message: Message) -> None:
        found, events = self._bridges[bridge], self._events
        if isinstance(message, Ready):
            events.bridge_ready(bridge)
        elif isinstance(message, Unreachable):
            found.reason, found.is_final = message.reason[:MESSAGE_LIMIT_CHARACTERS], message.is_final
        elif isinstance(message, RemoteReady):
            events.remote_ready(message.worker, message.node[:200], message.processor[:200])
        elif isinstance(message, RemoteAnswer):
            events.remote_message(message.worker, decode(message.packet), message.transfer_us)
        elif isinstance(message, DataDiffers):
            path, what = message.path[:MESSAGE_LIMIT_CHARACTERS], message.what[:MESSAGE_LIMIT_CHARACTERS]
            events.remote_data_differs(message.worker, message.task, path, what, is_recent=message.is_recent)
        elif isinstance(message, RemoteWaits):
            events.remote_waits(bridge, message.reason[:MESSAGE_LIMIT_CHARACTERS])
        elif isinstance(message, BridgeUsed):
            events.bridge_used(bridge, message.received_bytes, message.bridge_us, message.raylet_us)
        elif isinstance(message, Revoked):
            events.remote_revoked(bridge, message.task)
        elif isinstance(message, LateAnswer):
            events.remote_late(message.worker, message.task)
        elif isinstance(message, RemoteEnded):
            reason = message.reason[:MESSAGE_LIMIT_CHARACTERS]
            events.remote_ended(message.worker, reason, is_final=message.is_final)
        elif isinstance(message, RemotePrinted):
            lines = [line.decode("utf-8", "replace") for line in message.lines]
            events.remote_printed(found.stream, message.worker, lines, message.left_out)

    def _not_opened(self, bridge: int, reason: str) -> None:
        if bridge in self._unopened:
            self._unopened.remove(bridge)
            self._events.bridge_ended(bridge, reason, is_final=False)

    def _ended(self, bridge: int) -> None:
        found = self._bridges.pop(bridge, None)
        if found is None:
            return
        reaped = found.executed.reap()
        how = found.child.refusal or reaped
        found.child.close()
        reason = found.reason or f"its bridge to the cluster {describe_exit(how)}"
        self._events.bridge_ended(bridge, reason, is_final=found.is_final)
