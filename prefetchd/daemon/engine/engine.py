"""The engine has every event of the daemon as a method, and every decision as a command. Pure; time is an argument.

Call take_commands() after each event and carry the commands out in order. An event about something that is gone (a
session that closed, a worker that died) is ignored; one that a peer must not send raises ProtocolError and changes
nothing; one that cannot happen raises InvariantError. Decision 0006 says why events are calls and commands are data.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from prefetchd.daemon.engine.admin_actions import AdminActions
from prefetchd.daemon.engine.commands import (
    CloseSession,
    Command,
    Log,
    Send,
    Wake,
    WriteOffers,
)
from prefetchd.daemon.engine.pool.hosts import Hosts
from prefetchd.daemon.engine.pool.planners import Planners
from prefetchd.daemon.engine.pool.pool import Pool
from prefetchd.daemon.engine.pool.remote_pool import RemotePool
from prefetchd.daemon.engine.registry import Registry
from prefetchd.daemon.engine.resting import decide_who_rests, waits_for_time
from prefetchd.daemon.engine.rings import Rings
from prefetchd.daemon.engine.stream.adoption import FoundRing
from prefetchd.daemon.engine.stream.file_backed_ring import FILES, lose
from prefetchd.daemon.engine.stream.growth import refuse_what_is_held
from prefetchd.daemon.engine.stream.keeping import follow, keep
from prefetchd.daemon.engine.stream.resizing import give_up_slots, keep_beside_held, resize
from prefetchd.daemon.engine.stream.stages import Stage, Stuck
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.engine.trainers import UNKNOWN, Identity, Trainers
from prefetchd.daemon.engine.waits import Waits
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.ring.capacity import Bounds
from prefetchd.wire.messages import (
    Farewell,
    Hello,
    Message,
    Published,
    StreamFailed,
)
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.wire.worker_status import NO_WORKER_STATUS, WorkerStatus


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds what the daemon may use, and how long it waits. Durations in seconds. `workers` may be busy at once, over
    all streams; 0: as many as they have. A stream that says no number has `workers`, or `stream_workers` where that is
    0; from there on it is tuned with `autotune`, within `workers`. `remote`: there is a cluster for remote workers."""

    workers: int = 0
    stream_workers: int = 1
    linger_clean_s: float = 60.0
    linger_crash_s: float = 600.0
    retire_after_s: float = 30.0
    name_waits_after_s: float = 60.0
    name_waits_again_s: float = 30.0
    autotune: bool = False
    remote: bool = False


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _event(method: Callable[Concatenate[Engine, _P], _R]) -> Callable[Concatenate[Engine, _P], _R]:
    """Marks a method of Engine as an event: take_commands() decides anew after it. One that raises has changed
    nothing."""

    @functools.wraps(method)
    def take(engine: Engine, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        answer = method(engine, *args, **kwargs)
        engine._is_undecided = True
        return answer

    return take


class Engine:
    """Decides for all streams of one daemon. A method is an event, or a query that changes nothing; beside these are
    tick() and decide_overdue(), which find out whether time has made something due, and publications(), which only
    carries out what was decided."""

    def __init__(self, limits: Limits, identity: Identity = UNKNOWN) -> None:
        self.limits = limits
        self.streams: dict[int, StreamState] = {}
        self.stopping = False
        self._stream_by_session: dict[int, StreamState] = {}
        # One list for all parts, never replaced: commands come out in the order in which they were decided.
        self._commands: list[Command] = []
        self._is_undecided = False
        self._now_s = 0.0
        self.pool = Pool(
            limits.workers,
            limits.stream_workers,
            limits.retire_after_s,
            self.streams,
            self._commands,
            self._fail_stream,
        )
        self.remote_pool = RemotePool(
            self.streams,
            self._commands,
            self.pool.new_number,
            limits.retire_after_s,
            has_cluster=limits.remote,
        )
        self.planners = Planners(self.streams, self._commands, self.pool.new_number, self._fail_stream)
        self._hosts = Hosts(self.streams, self.pool, self.planners, self._commands, self._fail_stream)
        self.registry = Registry(
            self.streams,
            self._stream_by_session,
            self.pool,
            self.remote_pool,
            self.planners,
            self._hosts,
            self._commands,
        )
        again_s = limits.name_waits_again_s
        self.waits = Waits(limits.name_waits_after_s, again_s, self.streams, self.pool, self._commands)
        self._admin_actions = AdminActions(self.streams, self.registry, self.pool, self._commands)
        self._rings = Rings(self.streams, self.registry, self._commands, self._fail_stream)
        self._trainers = Trainers(
            identity,
            limits.linger_clean_s,
            limits.linger_crash_s,
            self.streams,
            self._stream_by_session,
            self.registry,
            self._hosts,
            self.waits,
            self.pool.busy_limit,
            self._commands,
        )

    @property
    def now_s(self) -> float:
        """The time of the latest tick."""
        return self._now_s

    def take_commands(self) -> list[Command]:
        """Returns what is to be done since the last call, in order. Tasks are handed out and consumers told here, once
        for all events since."""
        if self._is_undecided and not self.stopping:
            self._is_undecided = False
            self._trainers.undecided.decide(self._now_s)
            self._decide()
        commands = self._commands[:]
        self._commands.clear()
        return commands

    # --- trainers ---

    @_event
    def hello(self, session: int, hello: Hello, now_s: float, marks: tuple[int, ...] = ()) -> None:
        """Opens a session for a trainer; `marks` are those of the consumer record that it says it has. Answers Welcome
        or Refused."""
        self._trainers.hello(session, hello, now_s, marks)

    def undecided_until_s(self, session: int) -> float | None:
        """Returns when decide_overdue() is to be called for the session; None when it need not be."""
        return self._trainers.undecided.until_s(session)

    def decide_overdue(self, now_s: float) -> None:
        """Gives trainers that have waited for long enough their streams."""
        if self._trainers.undecided.tick(now_s):
            self._is_undecided = True

    @_event
    def program_arrived(self, session: int) -> None:
        """Notes that the stream's program segment is in the daemon's hands."""
        self._trainers.program_arrived(session)

    @_event
    def message(self, session: int, message: Message, now_s: float) -> None:
        """Takes a trainer's message after Hello. Raises ProtocolError."""
        self._trainers.message(session, message, now_s)

    @_event
    def session_closed(
        self,
        session: int,
        marks: tuple[int, ...],
        now_s: float,
        *,
        alive: bool = False,
        locked: bool = False,
        lives_on: bool = False,
        stood: tuple[int, int, int] | None = None,
    ) -> None:
        """Ends a session whose connection has ended; `marks` are those of its consumer record, which says that it
        `stood` at (cursor, epoch, step). When its process is `alive`, what it holds stays its own until it comes back
        or absent_died(). As long as the record is `locked`, nobody else gets it. A process that has closed its loader
        `lives_on` until leaver_ended()."""
        self._trainers.session_closed(session, marks, now_s, alive=alive, locked=locked, lives_on=lives_on, stood=stood)

    @_event
    def leaver_ended(self, number: int) -> None:
        """Notes that the process that had closed the stream's last loader, and had no connection for it any more, has
        ended."""
        stream = self.streams.get(number)
        if stream is not None:
            stream.leaver_lives = False

    @_event
    def absent_died(self, number: int, record: int, marks: tuple[int, ...], now_s: float) -> None:
        """Ends the consumer of `record`, which had no connection and is dead."""
        self._trainers.absent_died(number, record, marks, now_s)

    @_event
    def absent_departed(self, number: int, record: int, marks: tuple[int, ...], now_s: float) -> None:
        """Notes that the consumer of `record`, which had no connection, has closed its loader: it only holds what it
        was handed without a copy."""
        self._trainers.absent_departed(number, record, marks, now_s)

    @_event
    def adopt(self, spec: StreamSpec, found: FoundRing, now_s: float) -> StreamState | None:
        """Makes a dead daemon's ring a stream again; None when it cannot be one."""
        return self.registry.adopt(spec, found, now_s, self.limits.linger_crash_s)

    @_event
    def former_writers_gone(self, number: int) -> None:
        """Frees the slots to which workers of a dead daemon may have written: none of those workers is left."""
        stream = self.streams.get(number)
        if stream is not None and stream.window.ring is not None:
            for grant in stream.former_grants:
                stream.window.ring.clear(grant)
            stream.former_grants = []

    @_event
    def keep(self, session: int, position: Position, *, follows_progress: bool) -> None:
        """Makes the daemon's own session, whose hello() was answered, the keeper of its stream: that is filled from
        `position` on, also while nobody else is there."""
        keep(self._stream_by_session[session], session, position, follows_progress=follows_progress)

    @_event
    def progress(self, session: int, position: Position) -> None:
        """Moves the keeper's cursor: the consumer that the daemon's own `session` follows stands at `position`."""
        stream = self._stream_by_session.get(session)
        if stream is not None:
            follow(stream, position, self._now_s)

    @_event
    def batch_missing(self, number: int, slot: int, generation: int) -> None:
        """Drops a ready batch whose file somebody else has removed: it is made again if it is wanted."""
        stream = self.streams.get(number)
        if stream is not None and lose(stream, slot, generation):
            self._commands.append(Log.line("warning", "batch removed by somebody else", stream=stream.name, slot=slot))

    @_event
    def configured(self, config: bytes) -> None:
        """Notes the configuration file that the daemon has now. Trainers are told: they start the next daemon with
        it."""
        self._trainers.configured(config)

    @_event
    def fail(self, number: int, why: str) -> None:
        """Fails the stream, whatever it has; its trainers are told `why`."""
        stream = self.streams.get(number)
        if stream is not None and stream.failure is None:
            self._fail_stream(stream, "stream_failed", why)

    @_event
    def drop(self, number: int, why: str) -> None:
        """Drops the stream; its trainers are told `why`."""
        stream = self.streams.get(number)
        if stream is not None:
            self.registry.drop(stream, why)

    def is_tuned(self, stream: StreamState) -> bool:
        """True when nobody has said how many workers the stream is to have, and tune() may."""
        # Shards and turns have homes among as many workers as there are to be; and what other machines make says
        # nothing of how many are worth having here.
        is_open = not stream.spec.workers and stream.shard_affinity is None
        is_alone = stream.remote is None or not stream.remote.is_at_work
        return self.limits.autotune and is_open and is_alone

    @_event
    def tune(self, number: int, workers: int) -> None:
        """Has a stream that is_tuned() so many workers from now on."""
        stream = self.streams.get(number)
        if stream is not None:
            self.pool.tune(stream, workers)

    def publications(self, session: int) -> list[Command]:
        """Returns what tells the session what it is to know now, in order; its batches are leased with this. Empty when
        there is nothing."""
        stream = self._stream_by_session.get(session)
        if stream is None:
            return []
        told: list[Command] = []
        if stream.plans is not None:
            for cursor in stream.offering.cursors_of(session):
                told += [Send(session, each) for each in stream.plans.news(cursor, cursor.key[1])]  # type: ignore[index]
        for message in stream.offering.publications(session):
            if isinstance(message, Published):
                told.append(WriteOffers(session, message))
            told.append(Send(session, message))
        return told

    def has_news(self, session: int) -> bool:
        """True when `publications` would tell the session something: states or offers."""
        stream = self._stream_by_session.get(session)
        if stream is None:
            return False
        plans = stream.plans
        if plans is not None and any(plans.has_untold_states(cursor) for cursor in stream.offering.cursors_of(session)):
            return True
        return stream.offering.has_offers(session)

    def stream_of(self, session: int) -> StreamState | None:
        return self._stream_by_session.get(session)

    # --- the stream's host and its ring ---

    @_event
    def fork_arrived(self, session: int) -> int:
        """Returns the number of the host that a trainer's fork, which it hands over, becomes. fork_taken() or
        host_died() follows."""
        return self._hosts.new_fork(session).number

    @_event
    def fork_taken(self, session: int, host: int) -> None:
        """Notes that the fork is in the daemon's hands."""
        self._trainers.fork_came(session, host)

    @_event
    def host_ready(self, host: int) -> None:
        """Notes that the host has its program: workers can be started from it."""
        self._hosts.ready(host)

    @_event
    def host_not_started(self, host: int, reason: str, now_s: float) -> bool:
        """Notes that no process can be had for the host, which is gone; it is tried again. True the first time in a
        row."""
        return self._hosts.not_started(host, now_s, reason)

    @_event
    def host_identified(self, host: int, fingerprint: str) -> None:
        """Notes the fingerprint of a fork's program; empty: nobody will ever know it."""
        self._hosts.identified(host, fingerprint)

    @_event
    def program_kept(self, number: int) -> None:
        """Notes that the program that a fork was asked for is in the daemon's hands."""
        stream = self.streams.get(number)
        if stream is not None:
            self._hosts.program_kept(stream)

    @_event
    def program_refused(self, host: int, reason: str) -> None:
        """Notes that the fork cannot write its program, for this `reason`; empty: it would be too large to be written
        now."""
        orphaned = self._hosts.program_refused(host, reason)
        if orphaned is not None:
            self.registry.end_orphan(orphaned)

    @_event
    def spare_ready(self, host: int) -> None:
        """Notes that the host has another like itself in reserve."""
        self._hosts.spare_ready(host)

    def host_of(self, number: int) -> StreamState | None:
        """Returns the stream whose host this is."""
        host = self._hosts.get(number)
        return host.stream if host is not None else None

    @_event
    def load_failed(self, number: int, message: str, error: bytes) -> None:
        """Fails the stream: its program cannot be loaded."""
        stream = self.streams.get(number)
        if stream is not None:
            self._fail_stream(stream, "stream_failed", message, error)

    @_event
    def host_died(self, number: int, how: ProcessExit, oom_kills: int = 0) -> None:
        """Notes that the host is gone, and its workers with it or soon; `oom_kills` as with worker_died()."""
        self._short_of_memory(oom_kills)
        host = self._hosts.get(number)
        self._hosts.died(number, how)
        if host is not None:
            self._trainers.undecided.host_died(host)

    @_event
    def ring_created(
        self,
        number: int,
        slots: int,
        wanted_slots: int,
        slot_bytes: int,
        ring_id: int = 0,
        bounds: Bounds | None = None,
    ) -> None:
        """Notes that the segment exists with room for `slots`; the first `wanted_slots` are reserved one after another
        (ring_reserved). Clients that have it mapped call it `ring_id`. By itself it grows up to `slots`, or within
        `bounds`."""
        self._rings.created(number, slots, wanted_slots, slot_bytes, ring_id, bounds or Bounds(slots, slots))

    @_event
    def ring_reserved(self, number: int, slots: int) -> None:
        """Notes that slots up to `slots` have memory behind them."""
        self._rings.reserved(number, slots)

    def is_ring_tuned(self, stream: StreamState) -> bool:
        """True when nobody has said how large the stream's ring is to be, and resize_ring() may."""
        spec = stream.spec
        is_said = spec.buffer_bytes or spec.buffer_batches or spec.low_watermark or spec.high_watermark
        return self.limits.autotune and not is_said and spec.store != FILES and stream.window.ring is not None

    @_event
    def resize_ring(self, number: int, slots: int) -> None:
        """Has the ring of a stream of which is_ring_tuned() get `slots`: at once more, if there is memory, or fewer as
        batches are consumed."""
        stream = self.streams.get(number)
        if stream is not None:
            resize(stream, slots, self._commands)

    @_event
    def ring_failed(self, number: int, code: str, message: str, short_bytes: int = 0) -> None:
        """Notes that the segment cannot be made, for which `short_bytes` are missing."""
        self._rings.failed(number, code, message, short_bytes)

    @_event
    def ring_short(self, number: int, asked: int, slots: int, message: str, short_bytes: int) -> None:
        """Notes that there is no memory for the `asked` slots, but for `slots`, which are reserved or about to be;
        `short_bytes` more would do."""
        self._rings.short(number, asked, slots, message, short_bytes)

    # --- workers: the pool knows them, the engine publishes what they made ---

    @_event
    def worker_ready(self, worker: int, now_s: float) -> None:
        planned = self.planners.stream_of(worker)
        if planned is not None:
            self.planners.ready(planned)
        else:
            self.pool.worker_ready(worker, now_s)

    @_event
    def worker_not_started(self, worker: int, reason: str, now_s: float) -> StreamState | None:
        """Notes that no process can be had for the worker, or planner; it is tried again. Returns its stream, the first
        time in a row."""
        stream = self.planners.stream_of(worker)
        if stream is not None:
            self.planners.not_started(stream)
        elif (found := self.pool.worker_not_started(worker)) is not None:
            stream = found.stream
            self._hosts.worker_gone(stream, found.host)
        if stream is None or stream.failure is not None:
            return None
        self._commands.append(Log.line("warning", "no worker can be started", stream=stream.name, why=reason))
        is_first = stream.failed_starts.add(now_s, reason)
        self._hosts.cannot_fork(stream)
        return stream if is_first else None

    def stream_of_worker(self, worker: int) -> StreamState | None:
        """Returns the stream whose worker, or planner, the process is."""
        found = self.pool.workers.get(worker)
        return found.stream if found is not None else self.planners.stream_of(worker)

    @_event
    def worker_message(self, worker: int, message: Message, now_s: float) -> None:
        """Takes a worker's answer to its tasks, or the planner's. Raises ProtocolError; nothing has changed then."""
        planned = self.planners.stream_of(worker)
        if planned is not None:
            self.planners.says(planned, message)
            planned.trim_plans()
            return
        stream = self.pool.worker_message(worker, message, now_s)
        if stream is None:
            return
        if stream.window.ring is None and stream.batch_bytes and not stream.slot_bytes:
            self._rings.ask_for(stream)

    @_event
    def worker_died(
        self, worker: int, how: ProcessExit, now_s: float, note: WorkerStatus = NO_WORKER_STATUS, oom_kills: int = 0
    ) -> None:
        """Notes that the worker is dead for certain: nobody writes its rows any more. `note` is what it was at;
        `oom_kills` counts the kills of the memory cgroup, or is 0 when this was none."""
        planned = self.planners.stream_of(worker)
        if planned is not None:
            self.planners.died(planned, how)
            return
        found = self.pool.worker_died(worker, how, now_s, note, oom_kills)
        if oom_kills:
            self.registry.give_way_for_memory()
        if found is not None:
            self._hosts.worker_gone(found.stream, found.host)

    @_event
    def worker_looked_at(self, worker: int, frames: Sequence[str], *, sleeps: bool) -> None:
        """Notes that the worker is at these frames of the user's code, the innermost first, and whether it `sleeps`
        there."""
        self.pool.looked_at(worker, Stuck(tuple(frames), sleeps))

    # --- remote workers ---

    @_event
    def bridge_ready(self, bridge: int) -> None:
        """Notes that the bridge has reached its cluster."""
        self.remote_pool.bridge_ready(bridge)

    @_event
    def bridge_ended(self, bridge: int, reason: str, *, is_final: bool) -> None:
        """Notes that the bridge is dead for certain: nothing of what it had under way is written any more."""
        self.remote_pool.bridge_ended(bridge, reason, is_final=is_final)

    @_event
    def remote_ready(self, worker: int, node: str, processor: str) -> None:
        """Notes that the remote worker is on `node` and can take tasks."""
        self.remote_pool.worker_ready(worker, node, processor)

    @_event
    def remote_message(self, worker: int, message: Message, transfer_us: int, now_s: float) -> None:
        """Takes a remote worker's answer. Raises ProtocolError; nothing has changed then."""
        self.remote_pool.worker_message(worker, message, transfer_us, now_s)

    @_event
    def remote_data_differs(self, worker: int, task: int, path: str, what: str, *, is_recent: bool) -> None:
        """Notes that a remote worker has read a file for the task that is not what it is here."""
        self.remote_pool.data_differs(worker, task, path, what, is_recent=is_recent)

    @_event
    def remote_waits(self, bridge: int, reason: str) -> None:
        """Notes what remote workers wait for that have not come."""
        self.remote_pool.waits(bridge, reason)

    @_event
    def bridge_used(self, bridge: int, received_bytes: int, bridge_us: int, raylet_us: int) -> None:
        """Notes what receiving has cost (messages.BridgeUsed)."""
        self.remote_pool.used(bridge, received_bytes, bridge_us, raylet_us)

    @_event
    def remote_revoked(self, bridge: int, task: int) -> None:
        """Notes that nothing of a task that was taken back is written any more."""
        self.remote_pool.revoked(bridge, task)

    @_event
    def remote_late(self, worker: int, task: int) -> None:
        """Notes that a remote worker has come to the end of a task that was taken back."""
        self.remote_pool.answered_late(worker, task)

    @_event
    def remote_ended(self, worker: int, reason: str, *, is_final: bool) -> None:
        """Notes that the remote worker is gone, and that nothing of it is written any more."""
        self.remote_pool.worker_ended(worker, reason, is_final=is_final)

    # --- operators; all raise CallerError when no stream has that name ---

    @_event
    def pause(self, name: str) -> list[str]:
        """Pauses the stream, or all when `name` is empty; returns their names."""
        return self._admin_actions.pause(name)

    @_event
    def hold(self, names: Mapping[str, bool]) -> None:
        """Pauses streams of these names as soon as they are there, as they were in the daemon before; True: drained."""
        self.registry.held = dict(names)

    @property
    def held(self) -> dict[str, bool]:
        """The names of paused streams, also of those that have not come since hold(); True: drained."""
        return self.registry.held | {each.name: each.draining for each in self.streams.values() if each.paused}

    @_event
    def resume(self, name: str) -> list[str]:
        """Takes pause() and drain() back; returns the names of the streams that were held."""
        return self._admin_actions.resume(name)

    @_event
    def drain(self, name: str) -> list[str]:
        """Pauses streams, and ends the processes of each once no task of it is under way; returns their names."""
        return self._admin_actions.drain(name)

    @_event
    def evict(self, name: str, *, force: bool) -> list[str]:
        """Drops a stream and returns its name. Raises CallerError when somebody consumes it, unless with `force`."""
        return self._admin_actions.evict(name, force=force)

    @_event
    def finish(self) -> None:
        """Begins no task any more: the daemon is about to stop."""
        self.pool.finishing = True

    @property
    def is_busy(self) -> bool:
        """True while tasks are under way."""
        return any(stream.is_busy for stream in self.streams.values())

    # --- time ---

    def tick(self, now_s: float, linger_bytes: int | None = None) -> None:
        """Ends what has lingered long enough, and processes that have nothing to do. All rings that linger take
        `linger_bytes` at most, the last one left aside. To be called several times a second."""
        self._now_s = now_s
        may_go_on = self.registry.stop_waiting(now_s)
        self.registry.end_lingering(now_s, linger_bytes)
        self.registry.park(now_s)
        self._admin_actions.park_drained()
        may_go_on = self._try_again(now_s) or may_go_on
        self._hosts.tick(now_s)
        self.decide_overdue(now_s)
        self.pool.tick(now_s)
        self.remote_pool.tick(now_s)
        for stream in self.streams.values():
            if stream.store_fault.reason and stream.store_fault.end_if_over(now_s):
                self._commands.append(Log.line("info", "batches can be stored again", stream=stream.name))
        # Most of the time nothing is due: then there is nothing to decide either.
        pools_wait = self.pool.waits_for_time or self.remote_pool.waits_for_time
        if may_go_on or pools_wait or waits_for_time(self.streams.values()):
            self._is_undecided = True
        self.waits.tick(now_s)

    @_event
    def stop(self, reason: str, *, keep: bool = False) -> None:
        """Ends the daemon's work: sessions are told `reason`, and streams dropped. With `keep` streams are forgotten,
        and stay in the world as a daemon leaves them that is killed: nothing more is decided or written about them, and
        connections end with the process."""
        if self.stopping:
            return
        self.stopping = True
        for session in list(self._stream_by_session):
            self._commands.append(Send(session, Farewell(reason)))
            if not keep:
                self._commands.append(CloseSession(session))
        if keep:
            self._stream_by_session.clear()
            self.streams.clear()
        for stream in list(self.streams.values()):
            self.registry.drop(stream)

    # --- inside ---

    @_event
    def memory_is_short(self) -> None:
        """Gives memory back: the kernel has killed a process for memory, ours or another."""
        self.registry.give_way_for_memory()

    def _try_again(self, now_s: float) -> bool:
        """Lets processes be started again that could not be had. True when there are some."""
        due = False
        for stream in self.streams.values():
            due |= stream.failed_starts.end_pause(now_s)
        return due

    def _short_of_memory(self, oom_kills: int) -> None:
        self.pool.short_of_memory(oom_kills)
        if oom_kills:
            self.registry.give_way_for_memory()

    def _fail_stream(self, stream: StreamState, code: str, message: str, error: bytes = b"") -> None:
        stream.stage = Stage.FAILED
        stream.failure = (code, message, error)
        self._commands.append(Log.line("error", "stream failed", stream=stream.name, code=code, message=message))
        for session in stream.consumers:
            self._commands.append(Send(session, StreamFailed(code, message, error)))
        self.pool.stop_workers(stream)
        self.planners.forget(stream, stop=True)
        if not stream.consumers and not stream.absents:
            self.registry.drop(stream)

    def _decide(self) -> None:
        """Gives workers what they can take; tells consumers what is ready, or asks them for what stands in the way."""
        decide_who_rests(self.streams.values(), self._now_s)
        self.registry.unpark()
        for stream in self.streams.values():
            if stream.plans is not None and not stream.awaits_states:
                stream.claims.prove()
            if stream.is_shrinking:
                keep_beside_held(stream)
        self.pool.dispatch()
        if not self.pool.finishing and any(stream.remote is not None for stream in self.streams.values()):
            self.remote_pool.dispatch(max(self._now_s, self.pool.now_s))
        for stream in self.streams.values():
            offering = stream.offering
            needs_recall, urgent = stream.claims.take_need()
            if urgent:
                refuse_what_is_held(stream, self._commands)
            if needs_recall:
                for session, recall in offering.recalls(urgent=urgent):
                    self._commands.append(Send(session, recall))  # type: ignore[arg-type]
            for session in stream.consumers:
                offering.prepare(session)
                if offering.has_offers(session):
                    self._commands.append(Wake(session))
            if stream.is_shrinking:
                give_up_slots(stream, self._commands)
        # Last: what is claimed and what is offered asks for plans.
        self.planners.dispatch(self._now_s)
