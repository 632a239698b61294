"""Rings follow what becomes of the ring that a stream is to have: asked for, made, grown, or not to be had. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from prefetchd.daemon.engine.commands import Command, CreateRing, GrowRing, LendRing, ShareRing
from prefetchd.daemon.engine.registry import Registry
from prefetchd.daemon.engine.stream.file_backed_ring import FILES, ring_of
from prefetchd.daemon.engine.stream.growth import cannot_grow, grown
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import FailStream, StreamState
from prefetchd.ring.capacity import Bounds, measured_slot_bytes


class Rings:
    """Takes in what the shell says of streams' rings. `streams` are the engine's."""

    def __init__(
        self,
        streams: Mapping[int, StreamState],
        registry: Registry,
        commands: list[Command],
        fail_stream: FailStream,
    ) -> None:
        self._streams = streams
        self._registry = registry
        self._commands = commands
        self._fail_stream = fail_stream

    def ask_for(self, stream: StreamState) -> None:
        """Asks for a ring for a stream that has measured its first batch, and has none."""
        stream.slot_bytes = measured_slot_bytes(
            stream.batch_bytes, by_rows=bool(stream.layout), as_files=stream.spec.store == FILES
        )
        self._create(stream)

    def created(
        self, number: int, slots: int, wanted_slots: int, slot_bytes: int, ring_id: int, bounds: Bounds
    ) -> None:
        """Notes that the segment exists with room for `slots`; the first `wanted_slots` are reserved one after another
        (reserved). Clients that have it mapped call it `ring_id`. It may grow within `bounds`."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.ring_id = ring_id
        stream.slot_bytes = slot_bytes
        stream.wanted_slots = stream.first_slots = wanted_slots
        stream.bounds = bounds
        stream.window.lookback.ring_slots = bounds.usual
        stream.window.ring = ring_of(stream, slots, self._commands)
        stream.claims.ring_opened()
        # Workers that become ready later are lent the ring by the pool.
        for worker in stream.workers.values():
            if worker.stage is WorkerStage.READY:
                self._commands.append(LendRing(worker.number, number))
                worker.has_ring = True
        for session in stream.consumers:
            self._commands.append(ShareRing(session, number))

    def reserved(self, number: int, slots: int) -> None:
        """Notes that slots up to `slots` have memory behind them."""
        stream = self._streams.get(number)
        if stream is not None and stream.window.ring is not None:
            stream.window.ring.reserve(slots)
            grown(stream)

    def failed(self, number: int, code: str, message: str, short_bytes: int) -> None:
        """Fails the stream: its segment cannot be made. But when `short_bytes` more would do and streams without a
        consumer hold as much, these are dropped, and it is tried again."""
        stream = self._streams.get(number)
        if stream is None:
            return
        if self._registry.yield_memory(stream, short_bytes):
            self._create(stream)
        else:
            self._fail_stream(stream, code, message)

    def short(self, number: int, asked: int, slots: int, message: str, short_bytes: int) -> None:
        """Notes that there is no memory for the `asked` slots, but for `slots`, which the ring has or is about to have;
        `short_bytes` more would do. What streams without a consumer hold is taken; else the ring stays as it is, if
        that is enough to go on."""
        stream = self._streams.get(number)
        if stream is None or stream.window.ring is None or asked < stream.wanted_slots:
            # More has been asked for since; that has an answer of its own.
            return
        if self._registry.yield_memory(stream, short_bytes):
            self._commands.append(GrowRing(number, stream.wanted_slots))
        elif slots < stream.spec.minimum_slots:
            self._fail_stream(stream, "no_space", message)
        else:
            cannot_grow(stream, slots, message, self._commands)

    def _create(self, stream: StreamState) -> None:
        self._commands.append(CreateRing(stream.number, stream.batch_bytes, stream.slot_bytes, stream.layout))
