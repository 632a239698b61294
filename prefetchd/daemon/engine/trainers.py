"""Handles trainers as they come, go, come back and die. What they say meanwhile is for trainer_messages. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from prefetchd.daemon.engine.commands import CloseSession, Command, Send, ShareRing
from prefetchd.daemon.engine.deciding import Undecided, UndecidedTrainers
from prefetchd.daemon.engine.pool.hosts import Hosts
from prefetchd.daemon.engine.registry import Registry
from prefetchd.daemon.engine.stream.bad_samples import named_before
from prefetchd.daemon.engine.stream.consumers import AbsentConsumer, Consumer
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.engine.trainer_messages import TrainerMessages
from prefetchd.daemon.engine.waits import Waits
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.messages import (
    PROPOSED,
    ForkWanted,
    Goodbye,
    Hello,
    Message,
    PlaceCursor,
    Refused,
    StreamFailed,
    Welcome,
    check_rows,
)
from prefetchd.wire.stream_spec import encode_spec


@dataclasses.dataclass(frozen=True)
class Identity:
    """The facts about itself that a daemon tells in Welcome."""

    software: str = ""
    pid: int = 0
    generation: int = 1
    supervised: bool = False
    config: bytes = b""
    managed: bool = False


UNKNOWN = Identity()


class Trainers:
    """Handles the consumers of all streams. `streams` and `sessions` (the stream of each session) are the engine's; how
    long a ring lingers without a consumer, in seconds, depends on whether it said goodbye."""

    def __init__(
        self,
        identity: Identity,
        linger_clean_s: float,
        linger_crash_s: float,
        streams: dict[int, StreamState],
        sessions: dict[int, StreamState],
        registry: Registry,
        hosts: Hosts,
        waits: Waits,
        workers_of: Callable[[StreamState], int],
        commands: list[Command],
    ) -> None:
        self._hosts = hosts
        self._workers_of = workers_of
        self.undecided = UndecidedTrainers(registry, hosts, commands, self._decided)
        self._identity = identity
        self._linger_clean_s = linger_clean_s
        self._linger_crash_s = linger_crash_s
        self._streams = streams
        self._stream_by_session = sessions
        self._registry = registry
        self._messages = TrainerMessages(waits, commands)
        self._commands = commands

    def hello(self, session: int, hello: Hello, now_s: float, marks: tuple[int, ...] = ()) -> None:
        """Opens a session for a trainer; `marks` are those of the consumer record that it says it has. Answers Welcome
        or Refused."""
        check_rows("Hello.cursors", hello.cursors, 4)
        check_rows("Hello.held", hello.held, 3)
        if not self.undecided.hello(session, hello, now_s):
            self._open(session, hello, now_s, marks)

    def _open(self, session: int, hello: Hello, now_s: float, marks: tuple[int, ...] = ()) -> None:
        known = set(self._streams)
        try:
            stream = self._registry.acquire_stream(hello)
        except PrefetchdError as error:
            self._refuse(session, error.code, str(error))
            return
        comes_back = stream.awaits(hello)
        record = hello.consumer if comes_back else stream.free_record()
        if record is None:
            self._refuse(session, "daemon_refused", f"stream {stream.name!r} has all the consumers it can have")
            return
        # A stream that has taken the place of another of its name is new as well.
        is_new = stream.number not in known
        consumer = Consumer(session, hello.pid, record, hello.protocol, bool(hello.spec), hello.forks)
        stream.consumers[session] = consumer
        self._stream_by_session[session] = stream
        stream.lingers_until_s = None
        self._welcome(stream, consumer, is_new=is_new)
        if (named := named_before(stream)) is not None:
            self._commands.append(Send(session, named))
        if stream.failure is not None:
            self._commands.append(Send(session, StreamFailed(*stream.failure)))
        elif stream.window.ring is not None:
            self._commands.append(ShareRing(session, stream.number))
        if comes_back:
            del stream.absents[record]
            if not stream.is_awaited and len(stream.consumers) == 1:
                stream.offering.shareable = hello.shared
            held = {(slot, generation): (session, cursor) for cursor, slot, generation in hello.held}
            stream.leases.resolve_absent(record, marks, held)
        for cursor, epoch, step, waiting in hello.cursors:
            if waiting != PROPOSED or is_new:
                placed = PlaceCursor(cursor, epoch, step, bool(waiting), hello.ahead, hello.why)
                self._messages.place_cursor(stream, session, placed)
        self._registry.give_way_to(stream)
        self._registry.stop_waiting(now_s)

    def _welcome(self, stream: StreamState, consumer: Consumer, *, is_new: bool = False) -> None:
        """Tells the consumer what stream it is on, and asks it for the program unless there is one, or another consumer
        is asked."""
        wanted = stream.stage is Stage.AWAITING_PROGRAM and consumer.has_program
        wanted = wanted and stream.requests.program_from not in stream.consumers
        if wanted:
            stream.requests.program_from = consumer.session
        if consumer.forks and stream.host is None and not stream.requests.fork_from:
            # The fork comes next.
            stream.requests.fork_from = consumer.session
        self._say_welcome(stream, consumer, wanted=wanted and not consumer.forks, is_new=is_new)

    def configured(self, config: bytes) -> None:
        """Notes the configuration file that the daemon has now, and tells all trainers: a second Welcome asks them for
        nothing."""
        if config == self._identity.config:
            return
        self._identity = dataclasses.replace(self._identity, config=config)
        for stream in self._streams.values():
            for consumer in stream.consumers.values():
                if consumer.session >= 0 and not consumer.departed:
                    self._say_welcome(stream, consumer)

    def _say_welcome(
        self, stream: StreamState, consumer: Consumer, *, wanted: bool = False, is_new: bool = False
    ) -> None:
        welcome = Welcome(
            consumer.protocol,
            self._identity.software,
            self._identity.pid,
            self._identity.generation,
            stream.name,
            consumer.record,
            wanted,
            self._identity.supervised,
            b"" if consumer.has_program else encode_spec(stream.spec),
            self._identity.config,
            is_new,
            self._workers_of(stream),
            self._identity.managed,
        )
        self._commands.append(Send(consumer.session, welcome))

    def program_arrived(self, session: int) -> None:
        """Notes that the program that the trainer was asked for is in the daemon's hands, or the same one of another
        trainer."""
        stream = self._stream_by_session.get(session)
        if stream is None:
            return
        stream.requests.end(session)
        self._hosts.program_kept(stream)
        if stream.host is None and stream.coming is None:
            self._hosts.start(stream)

    # --- trainers that fork ---

    def fork_came(self, session: int, number: int) -> None:
        """Takes the trainer's fork, which is in the daemon's hands, as this host."""
        host = self._hosts.get(number)
        if host is None:
            return
        if self.undecided.fork_came(session, host):
            return
        stream = self._stream_by_session.get(session)
        if stream is not None:
            self._hosts.give(stream, host)
        else:
            # Its stream was dropped: the trainer is about to hear of that.
            self._hosts.drop(host)

    def _decided(self, found: Undecided, now_s: float) -> None:
        self._open(found.session, found.hello, now_s)
        stream = self._stream_by_session.get(found.session)
        if found.host is not None and stream is None:
            self._hosts.drop(found.host)
        elif found.host is not None and stream is not None:
            self._hosts.give(stream, found.host)
        for message in found.messages:
            self.message(found.session, message, now_s)

    def message(self, session: int, message: Message, now_s: float) -> None:
        """Takes a trainer's message after Hello. Raises ProtocolError."""
        if self.undecided.message(session, message, now_s):
            return
        stream = self._stream_by_session.get(session)
        if stream is None:
            # Its stream was dropped, or the daemon stops: the trainer is about to hear of that.
            return
        if isinstance(message, Goodbye):
            self._goodbye(stream, session, now_s)
        else:
            self._messages.handle(stream, session, message, now_s)

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
        self.undecided.forget(session)
        stream = self._stream_by_session.pop(session, None)
        if stream is None:
            return
        if stream.requests.fork_from == session:
            stream.requests.fork_from = 0
        if stood is not None:
            self._messages.stood(stream, session, *stood, now_s)
        consumer = stream.consumers.pop(session)
        if not consumer.departed:
            self._registry.left(stream, consumer, now_s, lives_on=False)
        elif stream.left_by_session == session:
            stream.leaver_lives = lives_on
        if alive and not consumer.departed and stream.failure is None and stream.window.ring is not None:
            position = stream.offering.keep_for_absent(session, consumer.record)
            stream.absents[consumer.record] = AbsentConsumer(consumer.record, consumer.pid, position)
            return
        if locked:
            # A fork of the trainer holds the lock, and has yet to close what it inherited: a consumer that got the
            # record now would be without a lock.
            stream.absents[consumer.record] = AbsentConsumer(consumer.record, consumer.pid, None, departed=True)
        position = stream.offering.drop_consumer(session, marks)
        others = stream.consumers.values()
        heir = next((each for each in others if each.has_program and not each.departed and not each.refused), None)
        if stream.awaits_program_of(session) and heir is not None:
            self._welcome(stream, heir)
            if heir.forks:
                self._commands.append(Send(heir.session, ForkWanted()))
        elif stream.awaits_program_of(session):
            self._registry.drop(stream, "the trainer that was to hand over its dataset has gone; make the loader again")
        elif stream.failure is not None and not stream.consumers and not stream.absents:
            self._registry.drop(stream)
        elif not consumer.departed:
            self._registry.linger(stream, position, now_s + self._linger_crash_s)

    def absent_died(self, number: int, record: int, marks: tuple[int, ...], now_s: float) -> None:
        """Ends the consumer of `record`, which had no connection and is dead."""
        stream = self._streams.get(number)
        absent = stream.absents.pop(record, None) if stream is not None else None
        if stream is None or absent is None:
            return
        stream.leases.resolve_absent(record, marks, {})
        if stream.failure is not None and not stream.in_use:
            self._registry.drop(stream)
            return
        if not absent.departed:
            self._registry.linger(stream, absent.position, now_s + self._linger_crash_s)
        self._registry.stop_waiting(now_s)

    def absent_departed(self, number: int, record: int, marks: tuple[int, ...], now_s: float) -> None:
        """Notes that the consumer of `record`, which had no connection, has closed its loader: it only holds what it
        was handed without a copy."""
        stream = self._streams.get(number)
        absent = stream.absents.get(record) if stream is not None else None
        if stream is None or absent is None or absent.departed:
            return
        stream.absents[record] = dataclasses.replace(absent, departed=True)
        stream.leases.absent_departed(record, marks)
        self._registry.linger(stream, absent.position, now_s + self._linger_clean_s, clean=True)
        self._registry.stop_waiting(now_s)

    # --- inside ---

    def _refuse(self, session: int, code: str, message: str) -> None:
        self._commands.append(Send(session, Refused(code, message)))
        self._commands.append(CloseSession(session))

    def _goodbye(self, stream: StreamState, session: int, now_s: float) -> None:
        # Tensors may outlive the loader: leases on yielded batches go on until the connection ends.
        stream.consumers[session].departed = True
        self._registry.left(stream, stream.consumers[session], now_s, lives_on=True)
        position = stream.offering.close_cursors(session)
        self._registry.linger(stream, position, now_s + self._linger_clean_s, clean=True)
