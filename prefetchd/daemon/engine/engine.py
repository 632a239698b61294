"""The engine: every event of the daemon as a method, every decision as a command. Pure; time is an argument.

Call take_commands() after each event and carry the commands out in order. An event about something that is gone
(a session that closed, a worker that died) is ignored; one that a peer must not send raises ProtocolError and
changes nothing; one that cannot happen raises InvariantError.
"""

from __future__ import annotations

import dataclasses

from prefetchd.daemon.engine.adoption import FoundRing
from prefetchd.daemon.engine.commands import (
    CloseSession,
    Command,
    CreateRing,
    GrowRing,
    LendRing,
    Log,
    Send,
    ShareRing,
    StartStream,
    Wake,
)
from prefetchd.daemon.engine.pool import Pool
from prefetchd.daemon.engine.registry import GHOST, Registry
from prefetchd.daemon.engine.stream import AbsentConsumer, Consumer, Stage, StreamState, WorkerStage
from prefetchd.daemon.engine.waits import Waits
from prefetchd.ring.policy import Ring
from prefetchd.wire.errors import PrefetchdError, ProtocolError
from prefetchd.wire.messages import (
    CloseCursor,
    Consumed,
    Farewell,
    Filled,
    GiveBack,
    Goodbye,
    Hello,
    Message,
    PlaceCursor,
    Refused,
    Rows,
    StreamFailed,
    Waiting,
    Welcome,
)
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.note import NO_NOTE, Note

POSITION_LIMIT = 1 << 60


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the daemon may use, and how long it waits. Durations in seconds."""

    workers: int = 1
    linger_clean_s: float = 60.0
    linger_crash_s: float = 600.0
    retire_after_s: float = 30.0
    name_waits_after_s: float = 60.0
    name_waits_again_s: float = 30.0


class Engine:
    """All streams of one daemon."""

    def __init__(
        self, limits: Limits, *, software: str = "", pid: int = 0, generation: int = 1, supervised: bool = False
    ) -> None:
        self.limits = limits
        self.streams: dict[int, StreamState] = {}
        self.stopping = False
        self._software = software
        self._pid = pid
        self._generation = generation
        self._supervised = supervised
        self._sessions: dict[int, StreamState] = {}
        self._commands: list[Command] = []
        self._moved = False
        self.pool = Pool(limits.workers, limits.retire_after_s, self.streams, self._commands, self._fail_stream)
        self.registry = Registry(self.streams, self._sessions, self.pool, self._commands)
        again_s = limits.name_waits_again_s
        self.waits = Waits(limits.name_waits_after_s, again_s, self.streams, self.pool, self._commands)

    def take_commands(self) -> list[Command]:
        """What is to be done since the last call, in order. Tasks are handed out and consumers told here, once for
        all events since."""
        if self._moved and not self.stopping:
            self._moved = False
            self._decide()
        commands = self._commands[:]
        self._commands.clear()
        return commands

    # --- sessions ---

    def hello(self, session: int, hello: Hello, now_s: float, marks: tuple[int, ...] = ()) -> None:
        """A trainer opens a session; `marks` are those of the consumer record that it says it has. Answers Welcome or
        Refused."""
        _check_rows("Hello.cursors", hello.cursors, 4)
        _check_rows("Hello.held", hello.held, 3)
        try:
            stream = self.registry.stream_for(hello)
        except PrefetchdError as error:
            self._refuse(session, error.code, str(error))
            return
        comes_back = stream.awaits(hello)
        record = hello.consumer if comes_back else stream.free_record()
        if record is None:
            self._refuse(session, "daemon_refused", f"stream {stream.name!r} has all the consumers it can have")
            return
        stream.consumers[session] = Consumer(session, hello.pid, record)
        self._sessions[session] = stream
        stream.lingers_until_s = None
        wanted = stream.stage is Stage.AWAITING_PROGRAM and len(stream.consumers) == 1
        if wanted:
            stream.program_from = session
        welcome = Welcome(
            hello.protocol,
            self._software,
            self._pid,
            self._generation,
            stream.name,
            record,
            wanted,
            self._supervised,
        )
        self._commands.append(Send(session, welcome))
        if stream.failure is not None:
            self._commands.append(Send(session, StreamFailed(*stream.failure)))
        elif stream.window.ring is not None:
            self._commands.append(ShareRing(session, stream.number))
        if comes_back:
            del stream.absents[record]
            if not stream.is_awaited and len(stream.consumers) == 1:
                stream.offering.shareable = hello.shared
            held = {(slot, generation): (session, cursor) for cursor, slot, generation in hello.held}
            stream.offering.resolve_absent(record, marks, held)
        for cursor, epoch, step, waiting in hello.cursors:
            self._place_cursor(stream, session, PlaceCursor(cursor, epoch, step, bool(waiting)))
        self.registry.settle(now_s)
        self._moved = True

    def program_arrived(self, session: int) -> None:
        """The stream's program segment is in the daemon's hands."""
        stream = self._session(session)
        if stream.stage is not Stage.AWAITING_PROGRAM or stream.program_from != session:
            raise ProtocolError("a program that nobody asked for")
        stream.stage = Stage.LOADING
        self._commands.append(StartStream(stream.number))

    def message(self, session: int, message: Message, now_s: float) -> None:
        """A trainer's message after Hello."""
        stream = self._session(session)
        offering = stream.offering
        if isinstance(message, Consumed):
            self._consumed(stream, session, message)
        elif isinstance(message, PlaceCursor):
            self._place_cursor(stream, session, message)
        elif isinstance(message, CloseCursor):
            offering.close_cursor((session, message.cursor))
        elif isinstance(message, GiveBack):
            offering.give_back((session, message.cursor), message.step)
        elif isinstance(message, Waiting):
            offering.wait((session, message.cursor))
            self.waits.begins(stream, (session, message.cursor), now_s)
        elif isinstance(message, Goodbye):
            self._goodbye(stream, session, now_s)
        else:
            raise ProtocolError(f"a trainer does not send {type(message).__name__}")
        self._moved = True

    def session_closed(
        self,
        session: int,
        marks: tuple[int, ...],
        now_s: float,
        *,
        alive: bool = False,
        stood: tuple[int, int, int] | None = None,
    ) -> None:
        """The connection has ended; `marks` are those of its consumer record, which says that it `stood` at (cursor,
        epoch, step). When its process is `alive`, what it holds stays its own until it comes back or absent_died."""
        stream = self._sessions.pop(session, None)
        if stream is None:
            return
        if stood is not None:
            self._stood(stream, session, *stood)
        consumer = stream.consumers.pop(session)
        if alive and not consumer.departed and stream.failure is None and stream.window.ring is not None:
            position = stream.offering.keep_for_absent(session, consumer.record)
            stream.absents[consumer.record] = AbsentConsumer(consumer.record, consumer.pid, position)
            self._moved = True
            return
        position = stream.offering.drop_consumer(session, marks)
        if stream.stage is Stage.AWAITING_PROGRAM and stream.program_from == session:
            self.registry.drop(stream, "the trainer that was to hand over its dataset has gone; make the loader again")
        elif stream.failure is not None and not stream.consumers and not stream.absents:
            self.registry.drop(stream)
        elif not consumer.departed:
            self.registry.linger(stream, position, now_s + self.limits.linger_crash_s)
        self._moved = True

    def adopt(self, spec: StreamSpec, found: FoundRing, now_s: float) -> StreamState | None:
        """A dead daemon's ring becomes a stream again; None when it cannot."""
        self._moved = True
        return self.registry.adopt(spec, found, now_s, self.limits.linger_crash_s)

    def absent_died(self, number: int, record: int, marks: tuple[int, ...], now_s: float) -> None:
        """The consumer of `record`, which had no connection, is dead."""
        stream = self.streams.get(number)
        absent = stream.absents.pop(record, None) if stream is not None else None
        if stream is None or absent is None:
            return
        stream.offering.resolve_absent(record, marks, {})
        if stream.failure is not None and not stream.in_use:
            self.registry.drop(stream)
            return
        if not absent.departed:
            self.registry.linger(stream, absent.position, now_s + self.limits.linger_crash_s)
        self.registry.settle(now_s)
        self._moved = True

    def absent_departed(self, number: int, record: int, marks: tuple[int, ...], now_s: float) -> None:
        """The consumer of `record`, which had no connection, has closed its loader: it only holds what it was handed
        without a copy."""
        stream = self.streams.get(number)
        absent = stream.absents.get(record) if stream is not None else None
        if stream is None or absent is None or absent.departed:
            return
        stream.absents[record] = dataclasses.replace(absent, departed=True)
        stream.offering.absent_departed(record, marks)
        self.registry.linger(stream, absent.position, now_s + self.limits.linger_clean_s)
        self.registry.settle(now_s)
        self._moved = True

    def former_writers_gone(self, number: int) -> None:
        """No worker of a dead daemon can write to the ring any more."""
        stream = self.streams.get(number)
        if stream is not None and stream.window.ring is not None:
            for grant in stream.former_grants:
                stream.window.ring.clear(grant)
            stream.former_grants = []
            self._moved = True

    def publications(self, session: int) -> list[Message]:
        """What to tell the session now; its batches are leased with this. Empty when there is nothing."""
        stream = self._sessions.get(session)
        return [] if stream is None else stream.offering.publications(session)

    def has_news(self, session: int) -> bool:
        stream = self._sessions.get(session)
        return stream is not None and stream.offering.has_news(session)

    def stream_of(self, session: int) -> StreamState | None:
        return self._sessions.get(session)

    # --- the stream's host and its ring ---

    def stream_loaded(self, number: int, now_s: float) -> None:
        """The stream's zygote has the program."""
        stream = self.streams.get(number)
        if stream is not None and stream.stage is Stage.LOADING:
            stream.stage = Stage.RUNNING
            self._moved = True

    def load_failed(self, number: int, message: str, error: bytes) -> None:
        """The program cannot be loaded."""
        stream = self.streams.get(number)
        if stream is not None:
            self._fail_stream(stream, "stream_failed", message, error)

    def host_died(self, number: int, how: str, oom_kills: int = 0) -> None:
        """The stream's zygote is gone, and its workers with it or soon; `oom_kills` as with worker_died."""
        self.pool.short_of_memory(oom_kills)
        stream = self.streams.get(number)
        if stream is None or stream.stage is Stage.FAILED:
            return
        stream.host_deaths += 1
        self._log("warning", "zygote died", stream=stream.name, how=how, deaths=stream.host_deaths)
        if stream.host_deaths > 3:
            self._fail_stream(
                stream, "stream_failed", f"the zygote of stream {stream.name!r} dies again and again: {how}"
            )
            return
        stream.stage = Stage.LOADING
        self._commands.append(StartStream(number))

    def ring_created(
        self, number: int, slots: int, wanted_slots: int, slot_bytes: int, now_s: float, ring_id: int = 0
    ) -> None:
        """The segment exists with room for `slots`; the first `wanted_slots` are reserved one after another
        (ring_reserved). Clients that have it mapped call it `ring_id`."""
        stream = self.streams.get(number)
        if stream is None:
            return
        stream.ring_id = ring_id
        stream.slot_bytes = slot_bytes
        stream.wanted_slots = wanted_slots
        stream.most_slots = slots
        stream.window.ring = Ring(slots)
        stream.filling.ring_opened()
        for worker in stream.workers.values():
            if worker.stage is WorkerStage.READY:
                self._commands.append(LendRing(worker.number, number))
                worker.has_ring = True
        for session in stream.consumers:
            self._commands.append(ShareRing(session, number))

    def ring_reserved(self, number: int, slots: int, now_s: float) -> None:
        """Slots up to `slots` have memory behind them."""
        stream = self.streams.get(number)
        if stream is not None and stream.window.ring is not None:
            stream.window.ring.reserve(slots)
            self._moved = True

    def ring_failed(self, number: int, code: str, message: str, short_bytes: int = 0) -> None:
        """The segment cannot be made. When `short_bytes` more would do and streams without a consumer hold as much,
        they are dropped for it."""
        stream = self.streams.get(number)
        if stream is None:
            return
        if self.registry.yield_memory(stream, short_bytes):
            self._create_ring(stream)
        else:
            self._fail_stream(stream, code, message)

    def ring_short(self, number: int, message: str, short_bytes: int) -> None:
        """No memory for more slots than are reserved; `short_bytes` more would do. What others without a consumer
        hold is taken; else the ring stays as it is, if that is enough to go on."""
        stream = self.streams.get(number)
        if stream is None or stream.window.ring is None:
            return
        if self.registry.yield_memory(stream, short_bytes):
            self._commands.append(GrowRing(number, stream.wanted_slots))
            return
        reserved = stream.window.ring.reserved
        if reserved < stream.spec.minimum_slots:
            self._fail_stream(stream, "no_space", message)
            return
        self._log("warning", "ring stays small", stream=stream.name, slots=reserved, why=message)
        self.pool.keep_ring_small(stream)
        self._moved = True

    # --- workers: the pool knows them, the engine publishes what they made ---

    def worker_ready(self, worker: int, now_s: float) -> None:
        self.pool.worker_ready(worker, now_s)
        self._moved = True

    def worker_message(self, worker: int, message: Message, now_s: float) -> None:
        """A worker's answer to its tasks."""
        if isinstance(message, Filled):
            _check_rows("Filled.tasks", message.tasks, 4)
        stream = self.pool.worker_message(worker, message, now_s)
        if stream is None:
            return
        if stream.window.ring is None and stream.batch_bytes and not stream.slot_bytes:
            stream.slot_bytes = stream.batch_bytes if stream.layout else stream.batch_bytes * 5 // 4
            self._create_ring(stream)
        self._moved = True

    def worker_died(self, worker: int, how: str, now_s: float, note: Note = NO_NOTE, oom_kills: int = 0) -> None:
        """The worker's death is certain: nobody writes its rows any more. `note` is what it was at; `oom_kills` counts
        the kills of the memory cgroup, or is 0 when this was none."""
        self.pool.worker_died(worker, how, now_s, note, oom_kills)
        self._moved = True

    # --- time ---

    def tick(self, now_s: float) -> None:
        """Ends what has lingered long enough, and processes that have nothing to do."""
        self.registry.settle(now_s)
        self.registry.end_lingering(now_s)
        self.registry.park()
        self.pool.tick(now_s)
        self._moved = self._moved or self.pool.waits_for_time
        self.waits.tick(now_s)

    def stop(self, reason: str) -> None:
        """The daemon ends: sessions are told, streams dropped."""
        if self.stopping:
            return
        self.stopping = True
        for session in list(self._sessions):
            self._commands.append(Send(session, Farewell(reason)))
            self._commands.append(CloseSession(session))
        for stream in list(self.streams.values()):
            self.registry.drop(stream)

    # --- inside ---

    def _place_cursor(self, stream: StreamState, session: int, message: PlaceCursor) -> None:
        self._check_position(message.cursor, message.epoch, message.step)
        for key in [key for key in stream.window.cursors if key[0] == GHOST]:  # type: ignore[index]
            stream.offering.close_cursor(key)  # type: ignore[arg-type]
        position = (message.epoch, message.step)
        stream.offering.place_cursor((session, message.cursor), position, waiting=message.waiting)

    def _create_ring(self, stream: StreamState) -> None:
        self._commands.append(CreateRing(stream.number, stream.batch_bytes, stream.slot_bytes, stream.layout))

    def _session(self, session: int) -> StreamState:
        stream = self._sessions.get(session)
        if stream is None:
            raise ProtocolError("a message before Hello")
        return stream

    def _refuse(self, session: int, code: str, message: str) -> None:
        self._commands.append(Send(session, Refused(code, message)))
        self._commands.append(CloseSession(session))

    @staticmethod
    def _check_position(cursor: int, epoch: int, step: int) -> None:
        if not (0 <= cursor < POSITION_LIMIT and 0 <= epoch < POSITION_LIMIT and 0 <= step < POSITION_LIMIT):
            raise ProtocolError(f"cursor {cursor} at ({epoch}, {step}): allowed: 0 to {POSITION_LIMIT}")

    def _consumed(self, stream: StreamState, session: int, message: Consumed) -> None:
        consumer = stream.consumers[session]
        released = message.released
        if len(released) % 3:
            raise ProtocolError("releases that are not (cursor, slot, generation) triples")
        if message.cursor >= 0:
            steps = stream.offering.yielded_up_to((session, message.cursor), message.step)
            consumer.yielded += steps
            stream.counters.consumed += steps
        consumer.waited_us += message.waited_us
        for at in range(0, len(released), 3):
            stream.offering.release((session, released[at]), released[at + 1], released[at + 2])

    def _stood(self, stream: StreamState, session: int, number: int, epoch: int, step: int) -> None:
        """Progress that was made and not told any more."""
        cursor = stream.window.cursors.get((session, number))
        if cursor is not None and cursor.epoch == epoch and cursor.next[1] < step <= cursor.offered[1]:
            self._consumed(stream, session, Consumed(number, step))

    def _goodbye(self, stream: StreamState, session: int, now_s: float) -> None:
        # Tensors may outlive the loader: leases on yielded batches go on until the connection ends.
        stream.consumers[session].departed = True
        position = stream.offering.close_cursors(session)
        self.registry.linger(stream, position, now_s + self.limits.linger_clean_s)

    def _fail_stream(self, stream: StreamState, code: str, message: str, error: bytes = b"") -> None:
        stream.stage = Stage.FAILED
        stream.failure = (code, message, error)
        self._log("error", "stream failed", stream=stream.name, code=code, message=message)
        for session in stream.consumers:
            self._commands.append(Send(session, StreamFailed(code, message, error)))
        self.pool.stop_workers(stream)
        if not stream.consumers and not stream.absents:
            self.registry.drop(stream)

    def _decide(self) -> None:
        """Workers get what they can take; consumers are told what is ready, or asked for what stands in the way."""
        self.registry.unpark()
        self.pool.dispatch()
        for stream in self.streams.values():
            offering = stream.offering
            cramped, pressed = stream.filling.take_need()
            if cramped:
                for session, recall in offering.recalls(pressing=pressed):
                    self._commands.append(Send(session, recall))  # type: ignore[arg-type]
            for session in stream.consumers:
                if offering.has_news(session):
                    self._commands.append(Wake(session))

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._commands.append(Log(level, event, tuple(fields.items())))


def _check_rows(name: str, rows: Rows, width: int) -> None:
    """Raises ProtocolError unless each row has `width` numbers."""
    if any(len(row) != width for row in rows):
        raise ProtocolError(f"{name} has rows of {sorted({len(row) for row in rows})} numbers; allowed: {width}")
