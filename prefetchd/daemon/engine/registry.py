"""The streams of one daemon: found by name, kept for a while without a consumer, parked, dropped. Pure.

A stream without a consumer lingers: its ring waits for a trainer to come back, and mostly fills on. It is the first to
give way: its processes when it has nothing to fill, its place among the busy workers, its ring when others need the
memory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from prefetchd.daemon.engine.adoption import FoundRing, found_batches, last_generation
from prefetchd.daemon.engine.batches import Batch
from prefetchd.daemon.engine.commands import CloseSession, Command, DropStream, Log, ParkStream, Send, StartStream
from prefetchd.daemon.engine.keeping import GHOST, waits_for_trainers
from prefetchd.daemon.engine.places import ring_of
from prefetchd.daemon.engine.planners import Planners
from prefetchd.daemon.engine.pool import Pool
from prefetchd.daemon.engine.stream import AbsentConsumer, Stage, StreamState
from prefetchd.ring.policy import SlotState
from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import Hello, Refused
from prefetchd.wire.stream_spec import Position, StreamSpec, decode_spec

SETTLE_S = 5.0
"""How long an adopted stream waits for its consumers before it fills anything."""


class Registry:
    """Which streams there are. `streams` and `sessions` (whose stream is which) are the engine's, and changed here."""

    def __init__(
        self,
        streams: dict[int, StreamState],
        sessions: dict[int, StreamState],
        pool: Pool,
        planners: Planners,
        commands: list[Command],
    ) -> None:
        self._streams = streams
        self._sessions = sessions
        self._pool = pool
        self._planners = planners
        self._commands = commands
        self._next_stream = 1

    def stream_for(self, hello: Hello) -> StreamState:
        """The stream that a trainer asks for: the one that is there, or a new one in its place or beside it. Raises
        CallerError and ProtocolError."""
        by_name = {stream.name: stream for stream in self._streams.values()}
        if not hello.spec:
            return _attached(by_name, hello)
        spec = decode_spec(hello.spec)
        spec = dataclasses.replace(spec, name=hello.stream, fingerprint=hello.fingerprint)
        found = by_name.get(spec.name)
        if found is not None and found.awaits(hello):
            return found
        if not hello.shared and not hello.fresh and (left := _left_by_another(by_name, spec)) is not None:
            found = left
        elif found is not None and found.in_use and not (hello.shared and found.offering.shareable):
            if hello.shared and found.spec.fingerprint != spec.fingerprint:
                raise CallerError(
                    f"stream {spec.name!r} is in use with another fingerprint; choose another name with stream="
                )
            suffix = 2
            while (found := by_name.get(f"{hello.stream}#{suffix}")) is not None and found.in_use:
                suffix += 1
            spec = dataclasses.replace(spec, name=f"{hello.stream}#{suffix}")
        if found is not None:
            differs = _difference(found, spec)
            if not differs and not hello.fresh:
                if not found.in_use:
                    # Whether those before shared it is over, and of a dead daemon's stream nobody knows.
                    found.offering.shareable = hello.shared
                found.serve_as(spec)
                return found
            if found.in_use:
                why = "shared, and fresh=True would drop what others read" if hello.fresh else differs
                raise CallerError(f"stream {spec.name!r} is in use ({why}); choose another name with stream=")
            self._log("info", "stream replaced", stream=found.name, was=found.spec.fingerprint, why=differs or "fresh")
            self.drop(found)
        stream = self._new_stream(spec)
        stream.offering.shareable = hello.shared
        return stream

    # --- from a dead daemon ---

    def adopt(self, spec: StreamSpec, found: FoundRing, now_s: float, linger_s: float) -> StreamState | None:
        """A stream of a dead daemon goes on: no ready batch of it is lost. Nothing is filled before its living
        consumers have come back, or SETTLE_S are over: they may hold what would be filled. None when another ring of
        that name was adopted already."""
        if any(stream.name == spec.name for stream in self._streams.values()):
            return None
        stream = self._new_stream(spec)
        stream.stage = Stage.PARKED if found.has_program else Stage.AWAITING_PROGRAM
        stream.layout, stream.slot_bytes, stream.ring_id = found.layout, found.slot_bytes, found.ring
        stream.batch_bytes = max((record.payload_bytes for record in found.records), default=0)
        stream.wanted_slots, stream.most_slots = found.wanted_slots, found.slots
        stream.claims.whole_only = not found.layout
        first_generation = last_generation(found) + 1
        ring = ring_of(stream, found.slots, self._commands, first_generation=first_generation)
        stream.window.ring = ring
        ring.reserve(len(found.records))
        living = {each.record for each in found.consumers if each.alive and not each.departed}
        holding = {each.record for each in found.consumers if each.alive and each.departed}
        # Whether they shared it, the first to come back will say.
        stream.offering.shareable = bool(living)
        behind: list[Batch] = []
        for each in found_batches(found):
            rows = stream.rows_found(each)
            if each.filling:
                ring.adopt(each.grant, quarantined=True)
                stream.former_grants.append(each.grant)
                continue
            holders = ((each.copy | each.have) & living) | (each.handed & holding)
            # A dead holder may have written to it, or one that has let it go. With lookback it may have been offered
            # again since.
            written = not each.handed <= holders
            if not rows or (written and not each.digest):
                continue
            batch = each.batch(rows, whole=not found.layout, written=written)
            if holders or (not written and each.position not in stream.window.batches):
                ring.adopt(each.grant, quarantined=False)
                stream.leases.adopt(batch, holders, exclusive=written or not holders <= each.copy - each.have)
            elif written:
                behind.append(batch)
        for batch in reversed(behind):
            stream.window.adopt_behind(batch)
        for consumer in found.consumers:
            if consumer.alive:
                stream.absents[consumer.record] = AbsentConsumer(
                    consumer.record, consumer.pid, consumer.position, consumer.departed
                )
        if living:
            stream.settles_until_s = now_s + SETTLE_S
        else:
            positions = [each.position for each in found.consumers if each.position is not None]
            self.linger(stream, min(positions, default=None), now_s + linger_s)
        self._log(
            "info", "ring adopted", stream=stream.name, batches=ring.count(SlotState.READY), waits_for=len(living)
        )
        return stream

    def settle(self, now_s: float) -> bool:
        """Consumers that have not come back in time are not waited for any longer. True when a stream may go on."""
        settled = [
            stream
            for stream in self._streams.values()
            if stream.settles_until_s is not None and (not stream.is_awaited or stream.settles_until_s <= now_s)
        ]
        for stream in settled:
            stream.settles_until_s = None
        return bool(settled)

    # --- without a consumer ---

    def linger(self, stream: StreamState, position: Position | None, until_s: float, *, clean: bool = False) -> None:
        """Without a consumer the ring stays for a while and fills on, from where its trainer stopped. After a `clean`
        end only to the end of the epoch that was broken off: nobody may ever want another."""
        key = (GHOST, 0)
        if waits_for_trainers(stream) and position is not None:
            stream.offering.close_cursor(key)
            stream.offering.place_cursor(key, position, waiting=True)
        if stream.in_use:
            return
        stream.lingers_until_s = until_s
        if position is None or (clean and position[1] == 0):
            return
        stream.offering.place_cursor(key, position, waiting=True)
        if clean:
            stream.offering.place_cursor(key, position, waiting=False)

    def end_lingering(self, now_s: float) -> None:
        """Drops streams whose time is over."""
        for stream in self._lingering():
            if stream.lingers_until_s is not None and stream.lingers_until_s <= now_s:
                self._log("info", "ring lingered out", stream=stream.name)
                self.drop(stream)

    def park(self) -> None:
        """Streams without a consumer that have nothing to fill give up their processes, but for the one that is to
        linger longest: its trainer is the likeliest to come back."""
        idle = [
            stream
            for stream in self._lingering()
            if stream.stage is Stage.RUNNING
            and stream.claims.need() is None
            and not any(worker.busy for worker in stream.workers.values())
        ]
        for stream in idle[:-1]:
            self.end_processes(stream)

    def end_processes(self, stream: StreamState) -> None:
        """The stream, of which nothing is under way, gets others when it has something to fill."""
        stream.stage = Stage.PARKED
        self._forget_processes(stream)
        self._commands.append(ParkStream(stream.number))

    def unpark(self) -> None:
        """Parked streams that have something to fill get processes again."""
        for stream in self._streams.values():
            if stream.stage is not Stage.PARKED or stream.paused or stream.settles_until_s is not None:
                continue
            if stream.claims.need() is not None:
                stream.stage = Stage.LOADING
                self._commands.append(StartStream(stream.number))

    def yield_memory(self, needy: StreamState, short_bytes: int) -> bool:
        """Drops streams without a consumer until `needy` can have `short_bytes`, the soonest to end first. False, and
        nothing is dropped, when that would not do."""
        rings = [stream for stream in self._lingering() if stream is not needy and stream.ring_bytes]
        if short_bytes <= 0 or sum(stream.ring_bytes for stream in rings) < short_bytes:
            return False
        for stream in rings:
            self._log("info", "ring yields its memory", stream=stream.name, to=needy.name)
            short_bytes -= stream.ring_bytes
            self.drop(stream)
            if short_bytes <= 0:
                break
        return True

    def drop(self, stream: StreamState, why: str = "") -> None:
        """Ends the stream; who is still connected to it is told `why`."""
        self._forget_processes(stream)
        for session in stream.consumers:
            self._sessions.pop(session, None)
            if why:
                self._commands.append(Send(session, Refused("daemon_refused", f"stream {stream.name!r}: {why}")))
            self._commands.append(CloseSession(session))
        del self._streams[stream.number]
        self._commands.append(DropStream(stream.number))

    def _forget_processes(self, stream: StreamState) -> None:
        self._pool.forget_stream(stream)
        self._planners.forget(stream)

    def _new_stream(self, spec: StreamSpec) -> StreamState:
        stream = StreamState(self._next_stream, spec, self._commands)
        self._next_stream += 1
        self._streams[stream.number] = stream
        return stream

    def _lingering(self) -> list[StreamState]:
        """Streams without a consumer, the soonest to end first."""
        lingering = [stream for stream in self._streams.values() if stream.lingers]
        return sorted(lingering, key=lambda stream: stream.lingers_until_s or 0.0)

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._commands.append(Log(level, event, tuple(fields.items())))


def _attached(by_name: Mapping[str, StreamState], hello: Hello) -> StreamState:
    """The stream that is asked for by its name alone. Raises CallerError."""
    found = by_name.get(hello.stream)
    if found is not None and (found.offering.shareable or found.awaits(hello)):
        return found
    shared = ", ".join(sorted(repr(name) for name, each in by_name.items() if each.offering.shareable)) or "none"
    raise CallerError(f"no stream {hello.stream!r} to attach to; there are: {shared}. Declare it in the configuration")


def _left_by_another(by_name: Mapping[str, StreamState], spec: StreamSpec) -> StreamState | None:
    """What nobody consumes and can serve a loader that did not name its stream: which of its script's loaders, or of
    the processes that run it, comes first may differ from run to run."""
    names = [name for name in by_name if re.fullmatch(f"{re.escape(spec.name)}(#[0-9]+)?", name)]
    for name in sorted(names, key=lambda name: (len(name), name)):
        stream = by_name[name]
        if not stream.in_use and not _difference(stream, spec):
            return stream
    return None


def _difference(stream: StreamState, spec: StreamSpec) -> str:
    """Why `stream` cannot serve who asks for `spec`; empty when it can."""
    if stream.failure is not None:
        return "it has failed"
    for name, told in (
        ("fingerprint", "another fingerprint"),
        ("buffer_bytes", "another buffer="),
        ("buffer_batches", "another buffer="),
        ("minimum_slots", "another device="),
        ("store", "another store"),
        ("directory", "another directory of its store"),
    ):
        if getattr(stream.spec, name) != getattr(spec, name):
            return told
    return ""
