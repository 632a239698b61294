"""Handles what a trainer says once it has its stream: where its cursors stand, what it gives back, what it waits for.
Pure."""

from __future__ import annotations

from prefetchd.daemon.engine.commands import Command, Send
from prefetchd.daemon.engine.stream.keeping import PLACEHOLDER_CONSUMER
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.engine.waits import Waits
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import (
    Assume,
    CloseCursor,
    Consumed,
    GiveBack,
    Message,
    PlaceCursor,
    ShardStart,
    StreamFailed,
    Waiting,
)
from prefetchd.wire.stream_spec import POSITION_LIMIT


class TrainerMessages:
    """Handles the messages of all trainers but the first and the last one of each."""

    def __init__(self, waits: Waits, commands: list[Command]) -> None:
        self._waits = waits
        self._commands = commands

    def handle(self, stream: StreamState, session: int, message: Message, now_s: float) -> None:
        """Takes a message of the trainer that has the `session` on the stream. Raises ProtocolError."""
        offering = stream.offering
        if isinstance(message, Consumed):
            self._consumed(stream, session, message, now_s)
        elif isinstance(message, PlaceCursor):
            self.place_cursor(stream, session, message)
        elif isinstance(message, CloseCursor):
            offering.close_cursor((session, message.cursor))
        elif isinstance(message, GiveBack):
            offering.give_back((session, message.cursor), message.step)
        elif isinstance(message, Waiting):
            offering.wait((session, message.cursor))
            if message.why:
                self._waits.is_asked(stream, (session, message.cursor), now_s)
            else:
                self._waits.begins(stream, (session, message.cursor), now_s)
        elif isinstance(message, Assume):
            self._assume(stream, session, message)
        elif isinstance(message, ShardStart):
            if message.epoch >= POSITION_LIMIT or message.following >= POSITION_LIMIT:
                raise ProtocolError(f"a shard's state at epoch {message.epoch}, batch {message.following}")
            stream.starts.take(message)
        else:
            raise ProtocolError(f"a trainer does not send {type(message).__name__}")

    def place_cursor(self, stream: StreamState, session: int, message: PlaceCursor) -> None:
        """Places a cursor; the one that held its place while nobody was there ends. Raises ProtocolError."""
        _check_position(message.cursor, message.epoch, message.step)
        for key in [key for key in stream.window.cursors if key[0] == PLACEHOLDER_CONSUMER]:  # type: ignore[index]
            stream.offering.close_cursor(key)  # type: ignore[arg-type]
        stream.plan_unsaid = False
        stream.window.ahead, stream.window.why_not_ahead = message.ahead, message.why
        position = (message.epoch, message.step)
        key = (session, message.cursor)
        for batch in stream.offering.place_cursor(key, position, waiting=message.waiting, anew=message.anew):
            if not batch.under_way:
                stream.claims.forget_measuring(batch)
        if not message.waiting:
            stream.filling.check_files(list(stream.window.batches.values()), message.epoch)

    def stood(self, stream: StreamState, session: int, number: int, epoch: int, step: int, now_s: float) -> None:
        """Counts progress that was made and not told any more."""
        cursor = stream.window.cursors.get((session, number))
        if cursor is not None and cursor.epoch == epoch and cursor.next[1] < step <= cursor.offered[1]:
            self._consumed(stream, session, Consumed(number, step), now_s)

    def _consumed(self, stream: StreamState, session: int, message: Consumed, now_s: float) -> None:
        consumer = stream.consumers[session]
        released = message.released
        if len(released) % 3:
            raise ProtocolError("releases that are not (cursor, slot, generation) triples")
        if message.cursor >= 0:
            steps = stream.offering.yielded_up_to((session, message.cursor), message.step)
            consumer.yielded += steps
            consumer.pace.took(steps, now_s)
            stream.counters.consumed += steps
        consumer.waited_us += message.waited_us
        stream.counters.waited_us += message.waited_us
        for at in range(0, len(released), 3):
            stream.leases.release((session, released[at]), released[at + 1], released[at + 2])

    def _assume(self, stream: StreamState, session: int, message: Assume) -> None:
        if stream.plans is None or not 0 <= message.epoch < POSITION_LIMIT:
            raise ProtocolError(f"an assumption about epoch {message.epoch} of order {stream.spec.order!r}")
        plans = stream.plans
        agrees = plans.agrees(message)
        living = [each for each in stream.window.cursors.values() if not each.waiting]
        begun = [each for each in living if each.consumer == session and each.epoch == message.epoch]
        # What a process that has merely begun means, nobody knows: it may be about to say the same.
        meant = {each.epoch for each in living if each.consumer != session and each.plan_confirmed}
        if agrees is False and message.epoch in meant:
            if begun:
                text = (
                    f"stream {stream.name!r} is shared, and another process is in epoch {message.epoch} with another "
                    "state of its sampler or generators; choose another name with stream="
                )
                self._commands.append(Send(session, StreamFailed("caller", text)))
            # A trainer that has not begun the epoch has only loaded a state: when it begins, with that or another one,
            # it compares.
            return
        if not agrees:
            epochs = plans.assume(message, meant)
            stream.leases.doubt(epochs)
            for consumer, recall in stream.offering.void(epochs):
                self._commands.append(Send(consumer, recall))  # type: ignore[arg-type]
        for cursor in begun:
            cursor.plan_confirmed = True


def _check_position(cursor: int, epoch: int, step: int) -> None:
    if not (0 <= cursor < POSITION_LIMIT and 0 <= epoch < POSITION_LIMIT and 0 <= step < POSITION_LIMIT):
        raise ProtocolError(f"cursor {cursor} at ({epoch}, {step}): allowed: 0 to {POSITION_LIMIT}")
