"""Is what runs in a Ray actor: it loads a stream's program once, and has a few workers make its batches.

Ray imports this module on the node; it does not import torch, and of Ray only what names the node. Methods may be
called by several threads, but for load(), which comes first, and alone.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.remote.comparison import differences, processor_here, versions_here
from prefetchd.remote.data_check import digest_of
from prefetchd.remote.narrowing import Packed, pack
from prefetchd.remote.node_environment import environment_of, on_this_node, program_with
from prefetchd.remote.node_workers import NodeError, NodeWorkers
from prefetchd.remote.program_parts import NoPartsError, describe_program
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.os_errors import why
from prefetchd.wire.stream_spec import decode_spec


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Says whether an actor can make batches: `refusal` says why not, and is empty where it can. `host` and `processor`
    name its machine."""

    host: str
    processor: str
    refusal: str = ""


@dataclasses.dataclass(frozen=True)
class Made:
    """One task's answer as it travels: a packet, the batch if there is one, printed lines, how many were left out, and
    for how long the task was here, in us. `failure` says that the actor is of no use any more."""

    packet: bytes = b""
    payload: Packed | None = None
    lines: tuple[str, ...] = ()
    left_out: int = 0
    here_us: int = 0
    failure: str = ""


class FillActor:
    """Makes one stream's batches on one node."""

    def __init__(self) -> None:
        self._workers: NodeWorkers | None = None

    def node(self) -> str:
        """Return Ray's id of the node on which it has started this actor."""
        return _whole_node_id()

    def load(
        self,
        program: Any,
        spec: bytes,
        layout: bytes,
        slot_bytes: int,
        lanes: int,
        versions: dict[str, str],
        parts: dict[str, str],
    ) -> Loaded:
        """Loads the program, an array of its segment's bytes, and starts `lanes` workers, unless something differs here
        from `versions` and `parts`, which are those beside the daemon. Blocks until the workers are ready."""
        host, processor = f"{socket.gethostname()}-{_node_id()}", processor_here()
        refusal = differences(versions, versions_here(), host)
        if not refusal:
            try:
                refusal = self._load(program, spec, layout, slot_bytes, lanes, parts, host)
            except (NodeError, NoPartsError, ProtocolError) as error:
                refusal = str(error)
            except OSError as error:
                refusal = why(error)
            if refusal:
                self.close()
        return Loaded(host, processor, refusal)

    def _load(
        self, program: Any, spec: bytes, layout: bytes, slot_bytes: int, lanes: int, parts: dict[str, str], host: str
    ) -> str:
        segment = memoryview(program).cast("B")
        environment = on_this_node(environment_of(segment))
        fd = program_with(environment, segment)
        # It takes the descriptor over. Its processes start while the parts are looked at.
        self._workers = NodeWorkers(fd, decode_spec(spec), layout, slot_bytes, lanes)
        copied = program_with(environment, segment)
        try:
            refusal = differences(parts, describe_program(copied, environment), host)
        finally:
            os.close(copied)
        if refusal:
            return refusal
        self._workers.wait()
        kill_point("actor.loaded")
        return ""

    def fill(self, lane: int, row: tuple[int, ...], keys: bytes) -> Made:
        """Makes the batch of a fill task. Blocks until it is made, or cannot be."""
        began_ns = time.monotonic_ns()
        kill_point("actor.task.begun")
        assert self._workers is not None
        try:
            answer = self._workers.fill(lane, row, keys)
        except NodeError as error:
            return Made(failure=str(error))
        payload = pack(np.frombuffer(answer.payload, np.uint8)) if answer.payload is not None else None
        kill_point("actor.batch.made")
        here_us = (time.monotonic_ns() - began_ns) // 1000
        return Made(answer.packet, payload, answer.lines, answer.left_out, here_us)

    def digests(self, paths: Sequence[bytes]) -> list[int]:
        """Return the digest of each file, as this node has it."""
        return [digest_of(path) for path in paths]

    def abandon(self, lane: int, number: int) -> None:
        """Ends the lane's worker if it is at the task of that number; another one takes its place."""
        if self._workers is not None:
            self._workers.abandon(lane, number)

    def close(self) -> None:
        """Ends all processes. Blocks until they are gone."""
        if self._workers is not None:
            self._workers.close()


def _node_id() -> str:
    """Returns the first letters of Ray's id of this node: a machine may be several, and be it again with another id."""
    return _whole_node_id()[:8]


def _whole_node_id() -> str:
    # Here: tests run this module without a cluster.
    import ray

    return str(ray.get_runtime_context().get_node_id())
