"""Records traces for those who ask: which worker filled which rows when, what came from other machines, when trainers
waited, and when a stream got another number of workers or a ring of another depth.

Nothing is kept while nobody asks. What is observed is what passes by anyway: answers of workers, progress of trainers,
decisions of the tuner.
"""

from __future__ import annotations

import time

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.sessions import Session
from prefetchd.tuning.ring_tuner import RingChange
from prefetchd.tuning.worker_tuner import Change
from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import (
    TRACED_FILL,
    TRACED_REMOTE,
    TRACED_WAIT,
    Consumed,
    Digested,
    Done,
    Filled,
    Ints,
    Message,
    TraceEvents,
    check_rows,
)

LONGEST_TRACE_S = 3600.0
SEND_EVERY_S = 0.25
EVENTS_A_MESSAGE = 500
MOST_KEPT_EVENTS = 100_000


class Tracing:
    """Keeps all traces that are under way."""

    def __init__(self, loop: Loop, engine: Engine) -> None:
        self._loop = loop
        self._engine = engine
        self._traces: dict[int, _Trace] = {}
        self._is_due = False

    def begin(self, session: Session, for_s: float) -> None:
        """Sends this session what happens in the next `for_s` seconds, then Done. Raises CallerError."""
        if not 0 < for_s <= LONGEST_TRACE_S:
            raise CallerError(f"a trace of {for_s:g} s; allowed: more than 0, up to {LONGEST_TRACE_S:.0f} s")
        self._traces[session.number] = _Trace(session, time.monotonic() + for_s)
        self._send_later()

    def ended(self, session: Session) -> None:
        """Ends the trace of a session that is gone."""
        self._traces.pop(session.number, None)

    def worker_tells(self, number: int, message: Message) -> None:
        """Traces a worker's answer. To be called before the engine hears of it: afterwards nobody knows what the task
        was. Raises ProtocolError."""
        if not self._traces:
            return
        worker = self._engine.pool.workers.get(number)
        if worker is None or not isinstance(message, Filled | Digested):
            return
        if isinstance(message, Filled):
            check_rows("Filled.tasks", message.tasks, 4)
            durations = [(task, duration_us) for task, _, duration_us, _ in message.tasks]
        else:
            durations = [(message.task, message.duration_us)]
        end_us = time.monotonic_ns() // 1000
        for task, duration_us in reversed(durations):
            piece = worker.tasks.get(task)
            if piece is not None:
                place = (worker.stream.number, number, *piece.batch.position, piece.first, piece.end, piece.kind)
                self._add((TRACED_FILL, *place, end_us - duration_us, duration_us), worker.stream.name)
            end_us -= duration_us

    def remote_tells(self, number: int, message: Message) -> None:
        """Traces a batch that a remote worker has made. To be called before the engine hears of it. Raises
        ProtocolError."""
        if not self._traces or not isinstance(message, Filled) or not message.tasks:
            return
        check_rows("Filled.tasks", message.tasks, 4)
        ((task, _, made_in_us, _),) = message.tasks[:1]
        found = self._engine.remote_pool.task_of(number, task)
        if found is None:
            return
        stream, given = found
        given_us = int(given.given_s * 1e6)
        place = (stream.number, number, *given.piece.batch.position, made_in_us, 0, given.piece.kind)
        self._add((TRACED_REMOTE, *place, given_us, time.monotonic_ns() // 1000 - given_us), stream.name)

    def trainer_tells(self, session: int, message: Message) -> None:
        """Traces a trainer's wait. To be called before the engine hears of it."""
        if not self._traces or not isinstance(message, Consumed) or not message.waited_us or message.cursor < 0:
            return
        stream = self._engine.stream_of(session)
        if stream is None:
            return
        cursor = stream.window.cursors.get((session, message.cursor))
        epoch = cursor.epoch if cursor is not None else 0
        began_us = time.monotonic_ns() // 1000 - message.waited_us
        place = (stream.number, stream.consumers[session].pid, epoch, message.step - 1, 0, 0, 0)
        self._add((TRACED_WAIT, *place, began_us, message.waited_us), stream.name)

    def tuned(self, stream: StreamState, change: Change) -> None:
        """Traces that a stream has another number of workers from now on."""
        at_us = time.monotonic_ns() // 1000
        for trace in self._traces.values():
            trace.add_change(True, (at_us, stream.number, change.before, change.workers), change.why, stream.name)

    def resized(self, stream: StreamState, change: RingChange) -> None:
        """Traces that a stream's ring is to have another depth from now on."""
        at_us = time.monotonic_ns() // 1000
        for trace in self._traces.values():
            trace.add_change(False, (at_us, stream.number, change.before, change.batches), change.why, stream.name)

    def _add(self, event: Ints, stream: str) -> None:
        for trace in self._traces.values():
            trace.add(event, stream)

    def _send_later(self) -> None:
        if self._traces and not self._is_due:
            self._is_due = True
            self._loop.call_later(SEND_EVERY_S, self._send)

    def _send(self) -> None:
        self._is_due = False
        for number, trace in list(self._traces.items()):
            if not trace.send():
                del self._traces[number]
        self._send_later()


class _Trace:
    """Keeps the events of one session's trace until they are sent."""

    def __init__(self, session: Session, until_s: float) -> None:
        self._session = session
        self._until_s = until_s
        self._events: list[Ints] = []
        self._names: dict[int, str] = {}
        self._changes: list[tuple[bool, Ints, str]] = []
        self._dropped = 0

    def add(self, event: Ints, stream: str) -> None:
        if len(self._events) >= MOST_KEPT_EVENTS:
            self._dropped += 1
            return
        self._events.append(event)
        self._names[event[1]] = stream

    def add_change(self, is_of_workers: bool, row: Ints, why: str, stream: str) -> None:
        if len(self._changes) >= MOST_KEPT_EVENTS:
            self._dropped += 1
            return
        self._changes.append((is_of_workers, row, why))
        self._names[row[1]] = stream

    def send(self) -> bool:
        """Sends as much as the peer reads; False when that was the last of it."""
        while self._session.is_clear and (self._events or self._changes):
            events, self._events = self._events[:EVENTS_A_MESSAGE], self._events[EVENTS_A_MESSAGE:]
            changes, self._changes = self._changes[:EVENTS_A_MESSAGE], self._changes[EVENTS_A_MESSAGE:]
            names = tuple(name.encode("utf-8", "replace") for name in self._names.values())
            tuned, resized = ([each for each in changes if each[0] is kind] for kind in (True, False))
            whys = tuple(why.encode("utf-8", "replace") for _, _, why in tuned + resized)
            rows = [tuple(row for _, row, _ in each) for each in (tuned, resized)]
            self._session.send(
                TraceEvents(tuple(events), tuple(self._names), names, self._dropped, rows[0], whys, rows[1])
            )
        if time.monotonic() < self._until_s or self._events or self._changes:
            return True
        self._session.send(TraceEvents((), (), (), self._dropped))
        self._session.send(Done())
        return False
