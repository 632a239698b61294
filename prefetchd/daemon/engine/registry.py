"""The streams of one daemon: found by name, kept for a while without a consumer, parked, dropped. Pure.

A stream without a consumer lingers: its ring waits for a trainer to come back, and mostly fills on. It is the first to
give way: its processes when it has nothing to fill, its place among the busy workers, its ring when others need the
memory. While the process that has closed its loader lives on, and anybody consumes another stream, it fills nothing
(decisions/0094).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from prefetchd.daemon.engine.commands import CloseSession, Command, DropStream, Identify, Log, ParkStream, Send
from prefetchd.daemon.engine.pool.hosts import Hosts
from prefetchd.daemon.engine.pool.planners import Planners
from prefetchd.daemon.engine.pool.pool import Pool
from prefetchd.daemon.engine.stream.adoption import FoundRing, found_batches, last_generation
from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.file_backed_ring import ring_of
from prefetchd.daemon.engine.stream.keeping import BEGINS, GOES_ON, waits_for_trainers
from prefetchd.daemon.engine.stream.stream_state import AbsentConsumer, Consumer, Stage, StreamState
from prefetchd.daemon.engine.stream_names import attached, difference, is_taken, left_by_another, related
from prefetchd.ring.capacity import Bounds
from prefetchd.ring.policy import SlotState
from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import Hello, Refused
from prefetchd.wire.stream_spec import POSITION_LIMIT, UNIDENTIFIED, Position, StreamSpec, decode_spec

DECIDE_WITHIN_S = 1.0
"""Then a trainer gets a stream of its own: its first batch is not to wait for a digest of all its data."""

DECIDE_OWN_WITHIN_S = 0.25
"""The same of a process that makes a loader anew: it has seldom use for what the one before has left."""

RESTS_S = 5.0
"""A process that has closed a loader may be about to end: so long its workers are kept, at rest."""

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
        hosts: Hosts,
        commands: list[Command],
    ) -> None:
        self._hosts = hosts
        self._streams = streams
        self._stream_by_session = sessions
        self._pool = pool
        self._planners = planners
        self._commands = commands
        self._next_stream = 1

    def acquire_stream(self, hello: Hello) -> StreamState:
        """The stream that a trainer asks for: the one that is there, or a new one in its place or beside it. Raises
        CallerError and ProtocolError."""
        by_name = self._by_name()
        if not hello.spec:
            return attached(by_name, hello)
        spec = decode_spec(hello.spec)
        spec = dataclasses.replace(spec, name=hello.stream, fingerprint=hello.fingerprint or UNIDENTIFIED)
        found = by_name.get(spec.name)
        if found is not None and found.awaits(hello):
            if spec.is_identified and not found.spec.is_identified:
                found.spec = dataclasses.replace(found.spec, fingerprint=spec.fingerprint)
                self._commands.append(Identify(found.number))
            return found
        if not hello.shared and not hello.fresh and (left := left_by_another(by_name, spec)) is not None:
            found = left
        elif found is not None and is_taken(found, hello):
            if hello.shared and found.spec.fingerprint != spec.fingerprint:
                raise CallerError(
                    f"stream {spec.name!r} is in use with another fingerprint; choose another name with stream="
                )
            suffix = 2
            while (found := by_name.get(f"{hello.stream}#{suffix}")) is not None and is_taken(found, hello):
                suffix += 1
            spec = dataclasses.replace(spec, name=f"{hello.stream}#{suffix}")
        if found is not None:
            differs = difference(found, spec)
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

    def must_wait(self, hello: Hello) -> bool:
        """True when there are batches that may be what is asked for, and nobody knows yet: the fingerprint of these or
        of those is yet to be told."""
        by_name = self._by_name()
        found = by_name.get(hello.stream)
        if hello.fresh or (found is not None and found.awaits(hello)):
            return False
        if hello.shared:
            return found is not None and not (hello.fingerprint and found.spec.is_identified)
        return not hello.fingerprint and any(not by_name[name].in_use for name in related(by_name, hello.stream))

    def has_left(self, hello: Hello) -> bool:
        """True when there are batches of what this hello is known to ask for, and it may have them."""
        by_name = self._by_name()
        spec = dataclasses.replace(decode_spec(hello.spec), name=hello.stream, fingerprint=hello.fingerprint)
        if not hello.shared:
            return left_by_another(by_name, spec) is not None
        found = by_name.get(hello.stream)
        return found is not None and found.spec.is_identified and not difference(found, spec)

    def patience_s(self, hello: Hello) -> float:
        """How long such a hello waits at most: briefly, where all that it may find was left by its own process."""
        by_name = self._by_name()
        left = [by_name[name] for name in related(by_name, hello.stream) if not by_name[name].in_use]
        own = bool(left) and all(stream.left_by == hello.pid for stream in left)
        return DECIDE_OWN_WITHIN_S if own else DECIDE_WITHIN_S

    # --- from a dead daemon ---

    def adopt(self, spec: StreamSpec, found: FoundRing, now_s: float, linger_s: float) -> StreamState | None:
        """A stream of a dead daemon goes on: no ready batch of it is lost. Nothing is filled before its living
        consumers have come back, or SETTLE_S are over: they may hold what would be filled. None when another ring of
        that name was adopted already."""
        if any(stream.name == spec.name for stream in self._streams.values()):
            return None
        if not spec.is_identified and not any(each.alive for each in found.consumers):
            # Nobody can say any more what its batches are of.
            return None
        stream = self._new_stream(spec)
        stream.has_program = found.has_program
        stream.stage = Stage.PARKED if found.has_program else Stage.AWAITING_PROGRAM
        stream.layout, stream.slot_bytes, stream.ring_id = found.layout, found.slot_bytes, found.ring
        stream.batch_bytes = max((record.payload_bytes for record in found.records), default=0)
        stream.wanted_slots = stream.first_slots = found.wanted_slots
        stream.bounds = found.bounds or Bounds(found.wanted_slots, found.slots)
        stream.window.lookback.ring_slots = found.wanted_slots
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

    def stop_waiting(self, now_s: float) -> bool:
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
        """Without a consumer the ring stays for a while and fills on, for two that may come: half of it from where its
        trainer stopped, and half from the beginning, where a script begins that is run again. After a `clean` end by
        what is there already alone: nobody may ever come."""
        if waits_for_trainers(stream) and position is not None:
            stream.offering.close_cursor(GOES_ON)
            stream.offering.place_cursor(GOES_ON, position, waiting=True)
        if stream.in_use:
            return
        stream.lingers_until_s = until_s
        stream.left_cleanly = clean
        if position is None:
            return
        stream.offering.place_cursor(GOES_ON, position, waiting=True)
        # A planner goes forward only. It would come back to its epoch through all that lie between: where one decides
        # the order, what it has told of the beginning must do.
        reach = POSITION_LIMIT if stream.plans is None else len(stream.plans.beginning())
        if position != (0, 0) and reach:
            stream.offering.place_cursor(BEGINS, (0, 0), waiting=True)
            stream.window.cursors[BEGINS].reach = reach

    @staticmethod
    def left(stream: StreamState, consumer: Consumer, now_s: float, *, lives_on: bool) -> None:
        """The consumer has gone, and its process `lives_on`."""
        stream.left_by, stream.left_by_session, stream.left_s = consumer.pid, consumer.session, now_s
        stream.leaver_lives = lives_on

    def rest(self) -> None:
        """What living processes have left is not filled while anybody consumes another stream: workers of a closed
        DataLoader would be gone, and these take the CPU of those that are waited for."""
        streams = self._streams.values()
        consumed = any(stream.in_use and not waits_for_trainers(stream) for stream in streams)
        for stream in streams:
            stream.claims.rests = consumed and stream.lingers and stream.leaver_lives

    def end_lingering(self, now_s: float, most_bytes: int | None = None) -> None:
        """Drops streams whose time is over; and the soonest to end, until the rings of all take `most_bytes` or less,
        but for the last one: its trainer is the likeliest to come back."""
        lingering = self._lingering()
        for stream in lingering:
            if stream.lingers_until_s is not None and stream.lingers_until_s <= now_s:
                self._log("info", "ring lingered out", stream=stream.name)
                self.drop(stream)
        if most_bytes is None:
            return
        rings = [stream for stream in self._lingering() if stream.ring_bytes]
        excess = sum(stream.ring_bytes for stream in rings) - most_bytes
        for stream in rings[:-1]:
            if excess <= 0:
                break
            self._log("info", "ring gives way", stream=stream.name, knob="linger_memory")
            excess -= stream.ring_bytes
            self.drop(stream)

    @property
    def lingering_bytes(self) -> int:
        """What rings without a consumer take together."""
        return sum(stream.ring_bytes for stream in self._lingering())

    def park(self, now_s: float) -> None:
        """Streams without a consumer that have nothing to fill give up their processes, but for the one that is to
        linger longest: its trainer is the likeliest to come back. One that was forked from its trainer has that one's
        memory, and the next trainer brings a fork of its own."""
        idle = [
            stream
            for stream in self._lingering()
            if stream.stage is Stage.RUNNING
            and not stream.claims.has_work()
            and not (stream.claims.rests and now_s < stream.left_s + RESTS_S)
            and not self._hosts.is_telling(stream)
            and not any(worker.busy for worker in stream.workers.values())
        ]
        for stream in idle:
            if stream is not idle[-1] or self._hosts.is_orphan(stream):
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
            if stream.starts_again_s is not None:
                continue
            if stream.lingers and stream.left_cleanly:
                # Only what is there already goes on for those who may never come.
                continue
            if stream.claims.has_work():
                self._hosts.resume(stream)

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
            self._stream_by_session.pop(session, None)
            if why:
                self._commands.append(Send(session, Refused("daemon_refused", f"stream {stream.name!r}: {why}")))
            self._commands.append(CloseSession(session))
        del self._streams[stream.number]
        self._commands.append(DropStream(stream.number))

    def drop_unidentifiable(self) -> None:
        """Streams of which nobody can say any more what their batches are of."""
        for stream in list(self._streams.values()):
            if not stream.spec.is_identified and not stream.in_use and stream.host is None and stream.coming is None:
                self.drop(stream)

    def give_way_for_memory(self) -> None:
        """A process was killed for memory: zygotes that still have a dead trainer's end first."""
        self._end_orphans(lambda stream: True)

    def give_way_to(self, successor: StreamState) -> None:
        """A trainer has come: zygotes that still have the memory of one that has ended in order end."""
        self._end_orphans(lambda stream: stream.left_cleanly and stream is not successor)

    def end_orphan(self, stream: StreamState) -> None:
        """The zygote of this stream, which still has a dead trainer's memory, ends."""
        self._end_orphans(lambda each: each is stream)

    def _end_orphans(self, is_meant: Callable[[StreamState], bool]) -> None:
        """They end what they are at; then there is nothing to fill, and they are parked."""
        for stream in self._lingering():
            if stream.stage is Stage.RUNNING and self._hosts.is_orphan(stream) and is_meant(stream):
                for key in (GOES_ON, BEGINS):
                    stream.offering.close_cursor(key)

    def _by_name(self) -> dict[str, StreamState]:
        return {stream.name: stream for stream in self._streams.values()}

    def _forget_processes(self, stream: StreamState) -> None:
        self._hosts.forget(stream)
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
