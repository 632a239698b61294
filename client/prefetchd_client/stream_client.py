"""One process on one stream: cursors, what was offered to each, and the messages that keep both sides agreed.

The daemon offers batches in order, cursor by cursor; next_batch() takes them. Nothing here knows of DataLoader.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from prefetchd.wire.errors import (
    ClosedError,
    DaemonRefusedError,
    DaemonUnavailableError,
    PrefetchdError,
    RemoteError,
    error_from_code,
)
from prefetchd.wire.framing import close_all
from prefetchd.wire.kill_points import kill_point
from prefetchd.wire.messages import (
    BadSamplesNamed,
    BatchFailed,
    CloseCursor,
    Consumed,
    EpochStates,
    Farewell,
    GiveBack,
    Goodbye,
    Message,
    Output,
    PlaceCursor,
    Published,
    Recall,
    Refused,
    RingOpened,
    ShardStart,
    StreamFailed,
    Waiting,
    WaitNamed,
    Welcome,
)
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.shard_states import MOST_BYTES, ShardState, Stated
from prefetchd.wire.stream_spec import StreamSpec, decode_spec
from prefetchd_client.assumptions import Assumptions
from prefetchd_client.attachment import Attachment
from prefetchd_client.autostart import what_it_says
from prefetchd_client.bad_samples import BadSampleList
from prefetchd_client.connection import Connection, unexpected
from prefetchd_client.cursors import ClientCursor, Cursors, EndOfEpoch
from prefetchd_client.epoch_plans import EpochPlans
from prefetchd_client.introduction import Introduction
from prefetchd_client.long_wait import LongWait
from prefetchd_client.progress import Progress
from prefetchd_client.reconnection import Reconnection
from prefetchd_client.remote_errors import rebuild_exception, stream_failure

ANSWER_TIMEOUT_S = 60.0
ATTEMPTS = 8
"""Daemons that may die on us one after another before a loader gives up."""
TELL_WAIT_AFTER_S = 0.05
DRAIN_EVERY = 8
DRAIN_BELOW = 4

# Closed clients whose batches are still held: nobody else keeps their connections open.
_outliving: set[StreamClient] = set()


class WaitTimedOut(Exception):  # noqa: N818 - the loader words it
    """The batch did not come within the loader's timeout. No TimeoutError: the user's own code may raise that."""


class StreamClient:
    """The session of one loader. One thread at a time."""

    def __init__(
        self,
        paths: RuntimePaths,
        spec: StreamSpec,
        parts: dict[str, Any],
        assumptions: Assumptions | None = None,
        prepared: tuple[bytes, list[memoryview]] | None = None,
        *,
        shared: bool,
        fresh: bool,
        introduction: Introduction | None = None,
    ) -> None:
        """Connects (starting a daemon if need be), asks for the stream and hands the program over if it is wanted;
        `prepared` is its pickle, if it was made already. With another `introduction` the daemon is reached, and the
        stream asked for, as that does it.

        Raises DaemonUnavailableError, DaemonRefusedError, UnpicklableError, NoSpaceError.
        """
        self.name = spec.name
        self._paths = paths
        self.spec = spec
        self._introduction = introduction or Introduction(paths, spec, parts, prepared, shared=shared)
        self._cursors = Cursors()
        self._plans = EpochPlans(assumptions, self._cursors, self._say, self._until_planned) if assumptions else None
        self._attachment: Attachment | None = None
        self._failure: PrefetchdError | None = None
        self._closed = False
        self._farewell = ""
        self._supervised = False
        self._reconnection: Reconnection | None = None
        self._reconnections = 0
        self._wait: LongWait | None = None
        self._progress = Progress()
        self._bad = BadSampleList()
        self._undrained = 0
        self._starts: tuple[int, Mapping[int, ShardState]] = (0, {})
        for attempts_left in reversed(range(ATTEMPTS)):
            self._connection = Connection(self._introduction.reach())
            try:
                self._open(fresh)
                break
            except BaseException as error:
                # One that dies or stops may still have taken our connection: the next one will be another's.
                is_gone = isinstance(error, DaemonUnavailableError) and not self._connection.is_open
                self._connection.close()
                if not (is_gone and attempts_left):
                    raise

    def _open(self, fresh: bool) -> None:
        self._connection.send(self._introduction.hello(self.name, self._cursors, None, fresh=fresh))
        kill_point("client.hello.said")
        try:
            message, fds = self._connection.expect(ANSWER_TIMEOUT_S)
        except DaemonUnavailableError as silence:
            raise DaemonUnavailableError(f"{silence} ({self._paths.socket}); {what_it_says(self._paths)}") from None
        close_all(fds)
        if isinstance(message, Refused):
            raise _refusal(message)
        if not isinstance(message, Welcome):
            raise unexpected(message)
        self.is_new = message.program_wanted
        self._welcomed(message)

    def _welcomed(self, message: Welcome) -> None:
        self.name = message.stream
        self._consumer = message.consumer
        self._supervised = message.supervised
        if message.spec:
            self.spec = decode_spec(message.spec)
        if message.program_wanted:
            self._introduction.hand_over(self._connection)

    # --- cursors ---

    @property
    def has_cursors(self) -> bool:
        """True while an iterator lives, or the next one is waited for."""
        return any(True for _ in self._cursors)

    def place_cursor(self, epoch: int, step: int) -> ClientCursor:
        """A new waiting cursor, filled ahead from (epoch, step) on."""
        self._check_usable()
        cursor = self._cursors.new(epoch, step)
        if step and self._starts[0] == epoch:
            cursor.shard_states |= self._starts[1]
        self._connection.send(PlaceCursor(cursor.number, epoch, step, True))
        return cursor

    def activate(self, cursor: ClientCursor) -> None:
        """The waiting cursor's iterator begins."""
        cursor.waiting = False
        kill_point("client.cursor.begun")
        self._connection.send(PlaceCursor(cursor.number, cursor.epoch, cursor.step, False))

    def close_cursor(self, cursor: ClientCursor) -> None:
        """Its iterator is gone. Idempotent, and silent after close()."""
        if self._cursors.end(cursor) and not self._closed:
            self._tell_progress()
            self._connection.send(CloseCursor(cursor.number))
            kill_point("client.cursor.closed")
            if self._attachment is not None and (released := self._attachment.take_released()):
                self._connection.send(Consumed(-1, 0, released))

    # --- batches ---

    def next_batch(self, cursor: ClientCursor, timeout_s: float) -> Any:
        """The cursor's next batch; waits for it. `timeout_s` 0 waits as long as it takes.

        Raises EndOfEpoch, the user's own exception for a batch that failed, StreamFailedError,
        DaemonUnavailableError, WaitTimedOut.
        """
        self._check_usable()
        if self._plans is not None and not cursor.compared:
            self._plans.compare(cursor, timeout_s)
        waited_us = 0
        self._undrained += 1
        # What has come meanwhile is not urgent while there is enough: each look costs a system call and, when the
        # caches are cold, a good part of a next().
        if self._undrained > DRAIN_EVERY or len(cursor.offers) <= DRAIN_BELOW or self._reconnection is not None:
            self._drain()
        if not cursor.is_offered:
            waited_us = self._wait_for(cursor, timeout_s)
        offer = cursor.offers.pop(cursor.step)
        epoch, step = cursor.epoch, cursor.step
        cursor.step += 1
        attachment = self._attachment
        if isinstance(offer, bytes):
            self._progress.went_on(cursor, (), waited_us)
            self._tell_progress()
            raise rebuild_exception(offer)
        assert attachment is not None
        slot, generation, private = offer
        released = attachment.take_released()
        batch, leased = attachment.take(cursor.number, slot, generation, private=private)
        if type(batch) is Stated:
            number, shard = divmod(step, self.spec.logical_shards)
            cursor.shard_states[shard] = (number + 1, batch.state)
            batch = batch.batch
        kill_point("client.batch.unnoted")
        now_ns = attachment.note_yield(cursor.number, epoch, step + 1, waited_us)
        kill_point("client.batch.noted")
        if not leased:
            released += (cursor.number, slot, generation)
        if self._progress.cursor is not cursor:
            self._tell_progress()
        self._progress.went_on(cursor, released, waited_us)
        if self._progress.is_due(now_ns, attachment.slots):
            self._tell_progress()
            self._progress.told_ns = now_ns
        return batch

    # --- iterable datasets ---

    def begin_shards(self, epoch: int, states: Mapping[int, ShardState]) -> None:
        """Cursors that are placed within the epoch from now on may begin with these, by shard."""
        self._starts = (epoch, states)
        self._tell_shards(epoch, states)

    def _tell_shards(self, epoch: int, states: Mapping[int, ShardState]) -> None:
        for shard, (number, state) in states.items():
            if len(state) <= MOST_BYTES:
                self._connection.send(ShardStart(epoch, shard, number, state))

    # --- where a sampler decides the order ---

    def assume(self, epoch: int) -> None:
        """The next iterator begins `epoch` as sampler and generators are now."""
        if self._plans is not None:
            self._plans.assume(epoch)

    def ended(self, cursor: ClientCursor) -> None:
        """The epoch is over: the sampler's generators are left as DataLoader leaves them."""
        if self._plans is not None:
            self._plans.ended(cursor)

    def _say(self, message: Message) -> None:
        # Progress first: what it says of cursors is about those that there were.
        self._tell_progress()
        self._connection.send(message)

    def _until_planned(self, cursor: ClientCursor, timeout_s: float) -> None:
        self._drain()
        with contextlib.suppress(EndOfEpoch):
            if not cursor.is_offered:
                self._wait_for(cursor, timeout_s)

    def close(self) -> None:
        """Ends the session in order. Batches that are still held stay valid. Idempotent."""
        if self._closed:
            return
        self._closed = True
        kill_point("client.close.begun")
        self._tell_progress()
        attachment = self._attachment
        if self._reconnection is not None:
            self._reconnection.close()
        if attachment is not None:
            attachment.note_departure()
            attachment.reclaim()
        if attachment is not None and (released := attachment.take_released()):
            self._connection.send(Consumed(-1, 0, released))
        kill_point("client.close.released")
        self._connection.send(Goodbye())
        kill_point("client.close.told")
        if attachment is None or not attachment.held:
            self._connection.close()
            if attachment is not None:
                attachment.close()
        else:
            # The daemon may reuse the slots of held batches once the connection has ended: the last one ends it.
            _outliving.add(self)
            attachment.when_all_are_dropped(self._end_after_close)

    def _end_after_close(self) -> None:
        self._connection.close()
        if self._attachment is not None:
            self._attachment.close()
        _outliving.discard(self)

    def stats(self) -> dict[str, Any]:
        """Counts since the loader was made, times in seconds; and the bad samples that were named."""
        counts = self._attachment.stats() if self._attachment is not None else {"yielded": 0}
        return counts | {"reconnections": self._reconnections, "bad_samples": self._bad.told()}

    def abandon(self) -> None:
        """In a forked child: closes what it inherited and sends nothing."""
        self._closed = True
        self._connection.close()
        if self._attachment is not None:
            self._attachment.close()

    # --- inside ---

    def _tell_progress(self) -> None:
        message = self._progress.take()
        if message is not None:
            kill_point("client.progress.untold")
            self._connection.send(message)
            kill_point("client.progress.told")

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the loader is closed")
        if self._failure is not None:
            raise self._failure

    def _wait_for(self, cursor: ClientCursor, timeout_s: float) -> int:
        """Until the cursor's next batch is offered; microseconds that it took."""
        self._tell_progress()
        wait = self._wait = LongWait(self.name, cursor.epoch, cursor.step)
        try:
            self._wait_until_offered(cursor, timeout_s, wait)
        finally:
            self._wait = None
        return wait.waited_us

    def _wait_until_offered(self, cursor: ClientCursor, timeout_s: float, wait: LongWait) -> None:
        told = False
        while not cursor.is_offered:
            if cursor.steps is not None and cursor.step >= cursor.steps:
                raise EndOfEpoch
            if self._failure is not None:
                raise self._failure
            if self._reconnection is not None and self._reconnection.error is not None:
                error, self._reconnection = self._reconnection.error, None
                gone = f"the daemon is gone{': ' + self._farewell if self._farewell else ''}"
                raise DaemonUnavailableError(f"{gone}, and {error}")
            waited_s = wait.waited_s
            if timeout_s and waited_s >= timeout_s:
                raise WaitTimedOut
            if waited_s >= wait.name_at_s:
                wait.name(self._why_unnamed())
            if not told and waited_s >= TELL_WAIT_AFTER_S:
                told = True
                self._connection.send(Waiting(cursor.number))
            wake_at_s = min(wait.name_at_s if told else TELL_WAIT_AFTER_S, timeout_s or wait.name_at_s)
            if self._reconnection is not None:
                told = False
                time.sleep(min(self._reconnection.pause_s, max(0.0, wake_at_s - waited_s)))
            else:
                self._connection.wait(wake_at_s - waited_s)
            self._drain()

    def _why_unnamed(self) -> str:
        """What is to be said when the daemon does not say why it takes so long."""
        if self._reconnection is not None:
            return f"there is no daemon at {self._paths.socket}; it is tried again and again"
        return f"the daemon does not say why; is it stopped? `prefetchd status` tells, and {what_it_says(self._paths)}"

    def _drain(self) -> None:
        self._undrained = 0
        if self._reconnection is not None:
            self._come_back(self._reconnection)
        while (found := self._connection.receive()) is not None:
            message, fds = found
            if isinstance(message, RingOpened) and len(fds) == 1:
                self._attach(fds[0])
                continue
            close_all(fds)
            self._handle(message)
        if not self._connection.is_open and self._reconnection is None and self._failure is None:
            self._connection.close()
            self._reconnection = Reconnection(self._paths, supervised=self._supervised)

    def _come_back(self, reconnection: Reconnection) -> None:
        """What was offered is good as long as no daemon has heard our Hello; then it is offered again."""
        sock = reconnection.step()
        if sock is None:
            return
        self._reconnection = None
        self._reconnections += 1
        self._farewell = ""
        self._connection = Connection(sock)
        # The Hello says all that was not told.
        self._progress.take()
        if self._attachment is not None:
            self._attachment.take_released()
        self._cursors.forget_offers()
        kill_point("client.return.unsaid")
        self._connection.send(self._introduction.hello(self.name, self._cursors, self._attachment))
        if self._plans is not None:
            self._plans.say_again()
        for cursor in self._cursors:
            self._tell_shards(cursor.epoch, cursor.shard_states)
        kill_point("client.return.said")

    def _attach(self, fd: int) -> None:
        former = self._attachment
        if former is not None and former.is_to(fd, self._consumer):
            os.close(fd)
            return
        self._attachment = Attachment(fd, self._consumer, former)
        if former is not None:
            former.when_all_are_dropped(former.close)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._welcomed(message)
        elif isinstance(message, Published):
            self._cursors.published(message)
        elif isinstance(message, BatchFailed):
            self._cursors.failed(message)
        elif isinstance(message, EpochStates):
            self._cursors.planned(message)
        elif isinstance(message, Recall):
            self._give_back(message)
        elif isinstance(message, Output):
            _print_output(message)
        elif isinstance(message, BadSamplesNamed):
            self._bad.named(message)
        elif isinstance(message, WaitNamed):
            cursor = self._cursors.get(message.cursor)
            # What comes when nobody waits any more is of no interest.
            if self._wait is not None and cursor is not None and message.step >= cursor.step:
                self._wait.named(message)
        elif isinstance(message, StreamFailed):
            self._failure = stream_failure(message.code, message.message, message.error)
        elif isinstance(message, Refused):
            self._failure = _refusal(message)
        elif isinstance(message, Farewell):
            self._farewell = message.reason

    def _give_back(self, message: Recall) -> None:
        self._tell_progress()
        given = self._cursors.recalled(message)
        if given is not None:
            self._connection.send(GiveBack(*given))


def _refusal(message: Refused) -> PrefetchdError:
    """A caller's mistake under its own name, whatever else under one."""
    error = error_from_code(message.code, message.message)
    return error if not isinstance(error, RemoteError) else DaemonRefusedError(message.message)


def _print_output(message: Output) -> None:
    who = f"worker {message.worker}" if message.worker else "zygote"
    for line in message.text.split("\n"):
        print(f"[prefetchd {who}] {line}", file=sys.stderr)
    if message.dropped:
        print(f"[prefetchd {who}] ... {message.dropped} lines left out (see `prefetchd logs`)", file=sys.stderr)
