"""The registry keeps the streams of one daemon: found by name, kept for a while without a consumer, parked, dropped.
Pure. The rules, whose reasons are in decisions 0015 (streams without a consumer), 0017 (adopted rings), 0092 (names)
and 0094 (two trainers):

1. A trainer gets (`acquire_stream`), in this order,
   a. the stream whose absent consumer it is;
   b. unless it shares or wants a fresh one, one that nobody consumes and that can serve it: under its name, under a
      name beside that (`name#2`), or, if it did not name its stream, that of another loader of the same script;
   c. the stream of its name, when that can serve it, and nobody consumes it or both share it. One that cannot serve it,
      and that nobody consumes, is replaced by a new one;
   d. a new one: under its name, or beside a stream that is in use, or that may yet turn out to be what is asked for,
      under `name#2`, `name#3` and so on.
2. It waits for that while there are batches that may be what it asks for, and the fingerprint of these or of its own is
   not known yet (`must_wait`). It waits DECIDE_WITHIN_S at most from when its iterator begins, and DECIDE_LATEST_S in
   all; only DECIDE_OWN_WITHIN_S, where all that it may find was left by its own process. Who shares a stream by name
   waits on.
3. A stream without a consumer lingers: its ring stays for a while and fills on, for two that may come (`linger`). Half
   of it is filled from where its trainer stopped, half from the beginning, where a script begins that is run again.
   After a clean end only the processes that are there fill it. The ring of a program that reads live state is dropped.
4. A lingering stream may rest (resting.py). After RESTS_S its processes end, unless it is about to be filled on. An
   orphan ends at once where the daemon has the stream's program: it has a dead trainer's memory.
5. A lingering stream with nothing to fill is parked: its processes end (`park`). The one that is to linger longest
   keeps them, as its trainer is the likeliest to come back; unless its zygote is an orphan, a fork that has a dead
   trainer's memory.
6. Lingering rings give way, the soonest to end first: to a ring that finds no memory, but only if that will do
   (`yield_memory`), and while all together take more than they may, but for the last one (`end_lingering`).
7. Orphans end when memory is short; and, of streams that were left in order, when another trainer comes.
8. A stream of a dead daemon rests until its living consumers have come back, or COME_BACK_WITHIN_S are over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from prefetchd.daemon.engine.commands import CloseSession, Command, DropStream, Identify, Log, ParkStream, Send
from prefetchd.daemon.engine.pool.hosts import Hosts
from prefetchd.daemon.engine.pool.planners import Planners
from prefetchd.daemon.engine.pool.pool import Pool
from prefetchd.daemon.engine.pool.remote_pool import RemotePool
from prefetchd.daemon.engine.resting import may_be_awaited
from prefetchd.daemon.engine.stream.adoption import FoundRing, found_batches, last_generation
from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.consumers import AbsentConsumer, Consumer
from prefetchd.daemon.engine.stream.file_backed_ring import ring_of
from prefetchd.daemon.engine.stream.keeping import BEGINS, GOES_ON, waits_for_trainers
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.engine.stream_names import attached, beside, difference, is_taken, left_by_another, related
from prefetchd.ring.capacity import Bounds
from prefetchd.ring.policy import SlotState
from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import LIVE, Hello, Refused
from prefetchd.wire.stream_spec import POSITION_LIMIT, UNIDENTIFIED, Position, StreamSpec, decode_spec

DECIDE_WITHIN_S = 1.0
"""The longest wait for a fingerprint of a trainer whose iterator has begun (rule 2). Then it gets a stream of its own:
its first batch is not to wait for a digest of all its data."""

DECIDE_LATEST_S = 5.0
"""The longest wait of one whose iterator has not begun: it makes its other loaders or its model, and waits for nothing;
but a stream of its own could be filled meanwhile."""

DECIDE_OWN_WITHIN_S = 0.25
"""The same for a process that makes a loader anew: it has seldom use for what the one before has left."""

RESTS_S = 5.0
"""The time for which the workers of a resting stream are kept (rule 4): the process that has closed its loader may be
about to end."""

COME_BACK_WITHIN_S = 5.0
"""The time for which an adopted stream waits for its consumers before it fills anything (rule 8)."""


class Registry:
    """Finds, makes, keeps and drops the streams of one daemon. `streams` and `sessions` (the stream of each session)
    are the engine's, and changed here."""

    def __init__(
        self,
        streams: dict[int, StreamState],
        sessions: dict[int, StreamState],
        pool: Pool,
        remote_pool: RemotePool,
        planners: Planners,
        hosts: Hosts,
        commands: list[Command],
    ) -> None:
        self._hosts = hosts
        self._streams = streams
        self._stream_by_session = sessions
        self._pool = pool
        self._remote_pool = remote_pool
        self._planners = planners
        self._commands = commands
        self._next_stream = 1
        self.held: dict[str, bool] = {}
        """Names of streams that were paused in the daemon before, and have not come yet; True: drained."""

    def acquire_stream(self, hello: Hello) -> StreamState:
        """Returns the stream that a trainer asks for: one that is there, or a new one in its place or beside it (rule
        1). Raises CallerError and ProtocolError."""
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
            spec = dataclasses.replace(
                spec, name=beside(by_name, hello.stream, lambda stream: not is_taken(stream, hello))
            )
            found = by_name.get(spec.name)
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
            # Of a fresh one that forks the fingerprint is not asked for.
            why = "fresh" if hello.fresh else differs
            self._commands.append(
                Log.line("info", "stream replaced", stream=found.name, was=found.spec.fingerprint, why=why)
            )
            self.drop(found)
        stream = self._new_stream(spec)
        stream.offering.shareable = hello.shared
        return stream

    def must_wait(self, hello: Hello) -> bool:
        """True when there are batches that may be what is asked for, and a fingerprint that decides it is not known yet
        (rule 2)."""
        by_name = self._by_name()
        found = by_name.get(hello.stream)
        if hello.fresh or (found is not None and found.awaits(hello)):
            return False
        if hello.shared:
            return found is not None and not (hello.fingerprint and found.spec.is_identified)
        return not hello.fingerprint and any(not by_name[name].in_use for name in related(by_name, hello.stream))

    def has_left(self, hello: Hello) -> bool:
        """True when there are batches of what this hello, whose fingerprint is known, asks for, and it may have
        them."""
        by_name = self._by_name()
        spec = dataclasses.replace(decode_spec(hello.spec), name=hello.stream, fingerprint=hello.fingerprint)
        if not hello.shared:
            return left_by_another(by_name, spec) is not None
        found = by_name.get(hello.stream)
        return found is not None and found.spec.is_identified and not difference(found, spec)

    def patience_s(self, hello: Hello, *, begun: bool) -> float:
        """Returns how long such a hello waits at most from now on, when its iterator has `begun` or not (rule 2)."""
        by_name = self._by_name()
        left = [by_name[name] for name in related(by_name, hello.stream) if not by_name[name].in_use]
        if left and all(stream.left_by == hello.pid for stream in left):
            return DECIDE_OWN_WITHIN_S
        return DECIDE_WITHIN_S if begun else DECIDE_LATEST_S

    # --- from a dead daemon ---

    def adopt(self, spec: StreamSpec, found: FoundRing, now_s: float, linger_s: float) -> StreamState | None:
        """Goes on with a stream of a dead daemon: no ready batch of it is lost (rule 8). None when another ring of that
        name was adopted already, or nobody can say what its batches are of."""
        if any(stream.name == spec.name for stream in self._streams.values()):
            return None
        if not spec.is_identified and not any(each.alive for each in found.consumers):
            # Nobody can say any more what its batches are of.
            return None
        stream = self._new_stream(spec)
        stream.has_program = found.has_program
        stream.plan_unsaid = stream.is_planned
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
        # The first to come back will say whether they shared it.
        stream.offering.shareable = bool(living)
        behind: list[Batch] = []
        for each in found_batches(found):
            rows = stream.rows_found(each)
            if each.filling:
                ring.adopt(each.grant, quarantined=True)
                stream.former_grants.append(each.grant)
                continue
            holders = ((each.copy | each.have) & living) | (each.handed & holding)
            # A dead holder, or one that has let the batch go, may have written to it. With lookback it may have been
            # offered again since.
            written = not each.handed <= holders
            if not rows or (written and not each.digest):
                continue
            batch = each.batch(rows, whole=not found.layout, written=written)
            # Latest first, as found_batches() has them: of two at one position the later one is served.
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
            stream.awaits_consumers_until_s = now_s + COME_BACK_WITHIN_S
        else:
            positions = [each.position for each in found.consumers if each.position is not None]
            self.linger(stream, min(positions, default=None), now_s + linger_s)
        self._commands.append(
            Log.line(
                "info", "ring adopted", stream=stream.name, batches=ring.count(SlotState.READY), waits_for=len(living)
            )
        )
        return stream

    def stop_waiting(self, now_s: float) -> bool:
        """Gives up consumers of adopted streams that have not come back in time (rule 8). True when a stream may go
        on."""
        waited = [
            stream
            for stream in self._streams.values()
            if stream.awaits_consumers_until_s is not None
            and (not stream.is_awaited or stream.awaits_consumers_until_s <= now_s)
        ]
        for stream in waited:
            stream.awaits_consumers_until_s = None
        return bool(waited)

    # --- without a consumer ---

    def linger(self, stream: StreamState, position: Position | None, until_s: float, *, clean: bool = False) -> None:
        """Keeps the ring of a stream that has lost its last consumer, at `position`, until `until_s` (rule 3). `clean`
        says that its trainer has ended in order. A stream that is still in use does not linger."""
        if waits_for_trainers(stream) and position is not None:
            stream.offering.close_cursor(GOES_ON)
            stream.offering.place_cursor(GOES_ON, position, waiting=True)
        if stream.in_use:
            return
        if stream.is_private or stream.window.ahead == LIVE:
            # Other trainers may not have batches that depend on live state, or on those made before them.
            self.drop(stream)
            return
        stream.lingers_until_s = until_s
        stream.left_cleanly = clean
        if position is None:
            return
        stream.offering.place_cursor(GOES_ON, position, waiting=True)
        # A planner only goes forward. Asked for the beginning it would come back to its epoch through all that lie
        # between: where a sampler decides the order, what is known of the beginning must do.
        reach = POSITION_LIMIT if stream.plans is None else len(stream.plans.beginning())
        if position != (0, 0) and reach:
            stream.offering.place_cursor(BEGINS, (0, 0), waiting=True)
            stream.window.cursors[BEGINS].reach = reach

    @staticmethod
    def left(stream: StreamState, consumer: Consumer, now_s: float, *, lives_on: bool) -> None:
        """Notes that the consumer has gone, and whether its process `lives_on`."""
        stream.left_by, stream.left_by_session, stream.left_s = consumer.pid, consumer.session, now_s
        stream.leaver_lives = lives_on

    def end_lingering(self, now_s: float, most_bytes: int | None = None) -> None:
        """Drops streams whose time is over; then the soonest to end, until all lingering rings take `most_bytes` or
        less (rule 6)."""
        lingering = self._lingering()
        for stream in lingering:
            if stream.lingers_until_s is not None and stream.lingers_until_s <= now_s:
                self._commands.append(Log.line("info", "ring lingered out", stream=stream.name))
                self.drop(stream)
        if most_bytes is None:
            return
        rings = [stream for stream in self._lingering() if stream.ring_bytes]
        excess = sum(stream.ring_bytes for stream in rings) - most_bytes
        for stream in rings[:-1]:
            if excess <= 0:
                break
            self._commands.append(Log.line("info", "ring gives way", stream=stream.name, knob="linger_memory"))
            excess -= stream.ring_bytes
            self.drop(stream)

    @property
    def lingering_bytes(self) -> int:
        """The bytes that rings without a consumer take together."""
        return sum(stream.ring_bytes for stream in self._lingering())

    def park(self, now_s: float) -> None:
        """Ends the processes of lingering streams that have nothing to fill (rule 5)."""
        idle = [
            stream
            for stream in self._lingering()
            if stream.stage is Stage.RUNNING
            and not stream.claims.has_work()
            and not (stream.claims.rests and self._goes_on(stream, now_s))
            and not self._hosts.is_telling(stream)
            and not stream.is_busy
        ]
        for stream in idle:
            if stream is not idle[-1] or self._hosts.is_orphan(stream):
                self.end_processes(stream)

    def _goes_on(self, stream: StreamState, now_s: float) -> bool:
        """True when a stream that rests may be about to need its processes. An orphan is not kept for that where the
        daemon has the program: an executed zygote fills on from it."""
        if not may_be_awaited(stream):
            return now_s < stream.left_s + RESTS_S
        return stream.claims.has_more() and not (stream.has_program and self._hosts.is_orphan(stream))

    def end_processes(self, stream: StreamState) -> None:
        """Ends the processes of a stream of which no task is under way. It gets others when it has something to
        fill."""
        stream.stage = Stage.PARKED
        self._forget_processes(stream, with_remote=not stream.lingers)
        self._commands.append(ParkStream(stream.number))

    def unpark(self) -> None:
        """Starts processes for parked streams that have something to fill again."""
        for stream in self._streams.values():
            if stream.stage is not Stage.PARKED or stream.paused or stream.awaits_consumers_until_s is not None:
                continue
            if stream.failed_starts.is_pausing:
                continue
            if stream.lingers and stream.left_cleanly:
                # Rule 3: no process is started for those who may never come.
                continue
            if stream.claims.has_work():
                self._hosts.resume(stream)

    def yield_memory(self, needy: StreamState, short_bytes: int) -> bool:
        """Drops lingering streams until `needy` can have `short_bytes` (rule 6). False, and nothing is dropped, when
        that would not do."""
        rings = [stream for stream in self._lingering() if stream is not needy and stream.ring_bytes]
        if short_bytes <= 0 or sum(stream.ring_bytes for stream in rings) < short_bytes:
            return False
        for stream in rings:
            self._commands.append(Log.line("info", "ring yields its memory", stream=stream.name, to=needy.name))
            short_bytes -= stream.ring_bytes
            self.drop(stream)
            if short_bytes <= 0:
                break
        return True

    def drop(self, stream: StreamState, why: str = "") -> None:
        """Ends the stream; consumers that are still connected to it are told `why`."""
        self._forget_processes(stream)
        for session in stream.consumers:
            self._stream_by_session.pop(session, None)
            if why:
                self._commands.append(Send(session, Refused("daemon_refused", f"stream {stream.name!r}: {why}")))
            self._commands.append(CloseSession(session))
        del self._streams[stream.number]
        self._commands.append(DropStream(stream.number))

    def drop_unidentifiable(self) -> None:
        """Drops streams of which nobody can say any more what their batches are of."""
        for stream in list(self._streams.values()):
            if not stream.spec.is_identified and not stream.in_use and stream.host is None and stream.coming is None:
                self.drop(stream)

    def give_way_for_memory(self) -> None:
        """Ends all orphans: a process was killed for memory (rule 7)."""
        self._end_orphans(lambda stream: True)

    def give_way_to(self, successor: StreamState) -> None:
        """Ends the orphans of streams that were left in order: the trainer of `successor` has come (rule 7)."""
        self._end_orphans(lambda stream: stream.left_cleanly and stream is not successor)

    def end_orphan(self, stream: StreamState) -> None:
        """Ends the zygote of this stream if it is an orphan."""
        self._end_orphans(lambda each: each is stream)

    def _end_orphans(self, is_meant: Callable[[StreamState], bool]) -> None:
        """Closes the cursors of the orphans' streams: they end the tasks that are under way; then there is nothing to
        fill, and park() ends them."""
        for stream in self._lingering():
            if stream.stage is Stage.RUNNING and self._hosts.is_orphan(stream) and is_meant(stream):
                for key in (GOES_ON, BEGINS):
                    stream.offering.close_cursor(key)

    def _by_name(self) -> dict[str, StreamState]:
        return {stream.name: stream for stream in self._streams.values()}

    def _forget_processes(self, stream: StreamState, *, with_remote: bool = True) -> None:
        self._hosts.forget(stream)
        self._pool.forget_stream(stream)
        if with_remote:
            self._remote_pool.forget(stream)
        self._planners.forget(stream)

    def _new_stream(self, spec: StreamSpec) -> StreamState:
        stream = StreamState(self._next_stream, spec, self._commands)
        self._next_stream += 1
        self._streams[stream.number] = stream
        is_drained = self.held.pop(spec.name, None)
        if is_drained is not None:
            stream.paused, stream.draining = True, is_drained
            self._commands.append(Log.line("info", "stream paused", stream=spec.name, since="the daemon before"))
        return stream

    def _lingering(self) -> list[StreamState]:
        """Returns the streams without a consumer, the soonest to end first."""
        lingering = [stream for stream in self._streams.values() if stream.lingers]
        return sorted(lingering, key=lambda stream: stream.lingers_until_s or 0.0)
