"""StreamClient is one process's session on one stream: cursors, what was offered to each, and the messages that keep
both sides agreed. The daemon offers batches in order, cursor by cursor; next_batch() takes them. Nothing here knows of
DataLoader. The rules, with the decisions that have the reasons:

1. A batch is marked and noted in the ring before it is handed out (`next_batch`): a daemon that adopts the ring knows
   by that what it must not offer again (0017).
2. Progress is told now and then, and in any case before a wait, before an assumption, before a cursor is closed or
   another one goes on, before offers are given back, and with an error (0016).
3. The socket is looked at when DRAIN_BELOW offers or fewer are left, and after more than DRAIN_EVERY batches; while the
   link is lost, each time (0016).
4. A next() that has waited for TELL_WAIT_AFTER_S says so, once to each daemon (0011). After its timeout it asks why,
   and raises with the answer, or when none is expected any more.
5. What was offered is good until another daemon is told our Hello (0017). The Hello has all cursors and all held
   batches, so what was not told of either is dropped, and all offers are forgotten. After it come the fork, what the
   iterators began with, and the states of their shards (`_begin_again`).
6. A ring that is another daemon's by now, or a record that another process has locked, ends the connection: nothing
   else that this daemon has said can be trusted (0017).
7. A failure of the stream is final. The next_batch() that learns of it may still have its batch; each later one raises.
8. close() ends coming back first, then says Goodbye. The connection stays until the last held batch is gone, for then
   the daemon may reuse the slots. The lock on our record goes before the connection: afterwards the record may be
   another's.
9. In a forked child everything is the parent's: inherited descriptors are closed, and nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import ClosedError, NoSpaceError, PrefetchdError, StreamFailedError, UnpicklableError
from prefetchd.wire.framing import close_all
from prefetchd.wire.messages import (
    LIVE,
    BadSamplesNamed,
    BatchFailed,
    CloseCursor,
    Consumed,
    EpochStates,
    GiveBack,
    Goodbye,
    Message,
    Output,
    Published,
    Recall,
    Refused,
    RingOpened,
    SamplesWrote,
    ShardStart,
    StreamFailed,
    Waiting,
    WaitNamed,
    Welcome,
)
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.shard_states import MOST_BYTES, ShardState, Stated
from prefetchd.wire.stream_spec import Position, StreamSpec, decode_spec
from prefetchd_client.batches.attachment import Attachment, NotOurs
from prefetchd_client.forking.trainer_fork import ForkRequest, TrainerFork
from prefetchd_client.session.bad_samples import BadSampleList
from prefetchd_client.session.cursors import ClientCursor, Cursors, EndOfEpoch
from prefetchd_client.session.epoch_plans import EpochPlans
from prefetchd_client.session.handshake import Handshake
from prefetchd_client.session.link import Link
from prefetchd_client.session.long_wait import LongWait
from prefetchd_client.session.progress import Progress
from prefetchd_client.session.remote_errors import rebuild_exception, refusal, stream_failure
from prefetchd_client.session.run_ahead import EVERY_EPOCH, RunAhead
from prefetchd_client.session.sampler_state import SamplerState
from prefetchd_client.session.stuck_fork import StuckFork, other_threads
from prefetchd_client.session.worker_output import print_output

TELL_WAIT_AFTER_S = 0.05
NAMES_STUCK_AFTER_S = 15.0
"""Seconds after which the daemon is asked to explain the wait for a first sample that makes no progress."""
DRAIN_EVERY = 8
DRAIN_BELOW = 4

# Closed clients whose batches are still held: nobody else keeps their connections open.
_outliving: set[StreamClient] = set()


def _after_fork_in_child() -> None:
    """Closes what a fork inherits of closed clients (rule 9)."""
    for client in list(_outliving):
        client.abandon()
    _outliving.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


class WaitTimedOut(Exception):  # noqa: N818 - the loader words it
    """The batch did not come within the loader's timeout; the text says why, as far as that is known. It is no
    TimeoutError: the user's own code may raise that."""


class MustMove(Exception):  # noqa: N818 - the loader goes on elsewhere
    """The stream's batches are to be made by another process than the fork that makes them now. `what` names what
    samples have written, or the threads that they wait for if the fork `is_stuck`."""

    def __init__(self, what: str, *, is_stuck: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.is_stuck = is_stuck


class StreamClient:
    """Is the session of one loader. One thread at a time."""

    def __init__(
        self,
        paths: RuntimePaths,
        spec: StreamSpec,
        parts: dict[str, Any],
        sampler_state: SamplerState | None = None,
        prepared: tuple[bytes, list[memoryview]] | None = None,
        *,
        shared: bool,
        fresh: bool,
        handshake: Handshake | None = None,
        fork_request: ForkRequest | None = None,
        first: Position | None = None,
        classes: Iterable[type] = (),
        ahead: RunAhead = EVERY_EPOCH,
    ) -> None:
        """Connects (starting a daemon if need be), asks for the stream and hands the program over if it is wanted;
        `prepared` is its pickle, if it was made already. With a `fork_request` this process is forked instead, and a
        daemon that has to be started is not waited for. With another `handshake` the daemon is reached, and the
        stream asked for, as that does it. From `first` on the stream is filled if it is new, as far as `ahead` allows.
        Batches in files may hold instances of `classes`.

        Raises DaemonUnavailableError, DaemonRefusedError, UnpicklableError, NoSpaceError.
        """
        self.name = spec.name
        self.is_named = False  # True once the daemon has said which name the stream has.
        self.spec = spec
        self._classes = tuple(classes)
        self._handshake = handshake or Handshake(paths, spec, parts, prepared, shared=shared, fork_request=fork_request)
        self._cursors = Cursors(ahead)
        self._plans = (
            EpochPlans(sampler_state, self._cursors, self._say, self._until_planned) if sampler_state else None
        )
        self._attachment: Attachment | None = None
        self._failure: PrefetchdError | None = None
        self._moves: MustMove | None = None
        self._has_yielded = False
        self._closed = False
        self._wait: LongWait | None = None
        self._progress = Progress()
        self._bad = BadSampleList()
        self._undrained = 0
        self._starts: tuple[int, Mapping[int, ShardState]] = (0, {})
        self._first: ClientCursor | None = None
        if first is not None:
            self._first = self._cursors.new(*first, self._plan_epoch(first[0]), proposed=True)
        # A function makes the Hello: each daemon that is tried is told what is known by then, such as the fork's
        # fingerprint.
        self._link = Link(
            paths, self._handshake, lambda: self._handshake.hello(self.name, self._cursors, None, fresh=fresh)
        )
        if self._link.welcome is not None:
            self._welcomed(self._link.welcome)
            if self._first is not None and not self._link.welcome.is_new:
                self._cursors.end(self._first)
                self._first = None

    def take_first_cursor(self) -> ClientCursor | None:
        """Returns the waiting cursor that was proposed, or None when the daemon has said that it has batches of the
        stream. It is placed if the daemon has none."""
        first, self._first = self._first, None
        return first

    @property
    def fork(self) -> TrainerFork | None:
        """The fork of this process that makes the batches, or was to."""
        return self._handshake.fork

    def _welcomed(self, message: Welcome) -> None:
        self.name, self.is_named = message.stream, True
        self._consumer = message.consumer
        self._generation = message.generation
        if message.spec:
            self.spec = decode_spec(message.spec)

    # --- cursors ---

    @property
    def attachment(self) -> Attachment | None:
        """The ring that the latest batches come out of; None before the first."""
        return self._attachment

    @property
    def has_cursors(self) -> bool:
        """True when an iterator lives, or the next one is waited for."""
        return any(True for _ in self._cursors)

    def place_cursor(self, epoch: int, step: int) -> ClientCursor:
        """Places a new waiting cursor, filled ahead from (epoch, step) on."""
        self._check_usable()
        cursor = self._cursors.new(epoch, step, self._plan_epoch(epoch))
        if step and self._starts[0] == epoch:
            cursor.shard_states |= self._starts[1]
        self._link.send(self._cursors.placed(cursor))
        return cursor

    @property
    def ahead(self) -> RunAhead:
        """Whether batches of an epoch are made before it begins."""
        return self._cursors.ahead

    def run_ahead(self, ahead: RunAhead) -> None:
        """Set whether batches of an epoch are made before it begins, from the next cursor on."""
        self._cursors.ahead = ahead

    def _plan_epoch(self, epoch: int) -> int:
        return 0 if self.spec.equal_epochs else epoch

    def activate(self, cursor: ClientCursor) -> None:
        """Begins the iterator of the waiting cursor."""
        cursor.waiting = False
        if self._plans is not None and self.ahead.ahead == LIVE:
            # Batches of another plan would be made in vain, and be seen by what samples count.
            self._plans.assume(cursor.epoch)
        kill_point("client.cursor.begun")
        self._link.send(self._cursors.placed(cursor, anew=self.ahead.ahead == LIVE))

    def begin_anew(self, cursor: ClientCursor) -> None:
        """Begin the iterator of the waiting cursor, and drop what was made for it before."""
        cursor.waiting = False
        self._link.send(CloseCursor(self._cursors.new_number(cursor)))
        kill_point("client.cursor.begun")
        self._link.send(self._cursors.placed(cursor, anew=True))

    def close_cursor(self, cursor: ClientCursor) -> None:
        """Closes the cursor, whose iterator is gone. Idempotent; sends nothing after close()."""
        if self._cursors.end(cursor) and not self._closed:
            self._tell_progress()
            self._link.send(CloseCursor(cursor.number))
            kill_point("client.cursor.closed")
            if self._attachment is not None and (released := self._attachment.take_released()):
                self._link.send(Consumed(-1, 0, released))

    # --- batches ---

    def next_batch(self, cursor: ClientCursor, timeout_s: float) -> Any:
        """Waits for the cursor's next batch, and returns it. `timeout_s` 0 waits as long as it takes.

        Raises EndOfEpoch, the user's own exception for a batch that failed, StreamFailedError, DaemonUnavailableError,
        WaitTimedOut, MustMove.
        """
        self._check_usable()
        if self._moves is not None:
            raise self._moves
        if self._plans is None:
            waited_us = self._come_to_next(cursor, timeout_s)
        else:
            waited_us = self._come_to_planned(self._plans, cursor, timeout_s)
        self._has_yielded = True
        offer = cursor.offers.pop(cursor.step)
        step = cursor.step
        cursor.step += 1
        attachment = self._attachment
        if isinstance(offer, bytes):
            # Rule 2: after an error there may be no further next() to tell it.
            self._progress.went_on(cursor, (), waited_us)
            self._tell_progress()
            raise rebuild_exception(offer)
        assert attachment is not None
        slot, generation, private = offer
        released = attachment.take_released()
        batch, leased = attachment.take(cursor.number, slot, generation, private=private)
        if type(batch) is Stated:
            number, shard = divmod(step, self.spec.logical_shards)
            following = number + 1 if batch.following is None else batch.following
            cursor.shard_states[shard] = (following, batch.state)
            batch = batch.batch
        kill_point("client.batch.unnoted")
        # Rule 1.
        now_ns = attachment.note_yield(cursor.number, cursor.plan_epoch, step + 1, waited_us)
        kill_point("client.batch.noted")
        if not leased:
            released += (cursor.number, slot, generation)
        if self._progress.cursor is not cursor:
            self._tell_progress()
        self._progress.went_on(cursor, released, waited_us)
        if self._progress.is_due(now_ns, attachment.slots):
            self._tell_progress()
            self._progress.sent_ns = now_ns
        return batch

    def wait_ahead(self, cursor: ClientCursor, batches: int, timeout_s: float) -> None:
        """Waits until the cursor's next `batches` are offered, or all that its epoch has, or the time is over. Takes
        none of them."""
        until_s = time.monotonic() + timeout_s
        while not self._closed and self._failure is None and (left_s := until_s - time.monotonic()) > 0:
            self._drain()
            end = cursor.step + batches
            if cursor.steps is not None:
                end = min(end, cursor.steps)
            if all(step in cursor.offers for step in range(cursor.step, end)):
                break
            self._link.wait(left_s)

    # --- iterable datasets ---

    def begin_shards(self, epoch: int, states: Mapping[int, ShardState]) -> None:
        """Has cursors that are placed within the epoch from now on begin with these states, by shard, where they
        may."""
        self._starts = (epoch, states)
        self._tell_shards(epoch, states)

    def _tell_shards(self, epoch: int, states: Mapping[int, ShardState]) -> None:
        for shard, (number, state) in states.items():
            if len(state) <= MOST_BYTES:
                self._link.send(ShardStart(epoch, shard, number, state))

    # --- where a sampler decides the order ---

    def assume(self, epoch: int) -> None:
        """Says that the next iterator begins `epoch` as sampler and generators are now."""
        if self._plans is not None:
            self._plans.assume(epoch)

    def ended(self, cursor: ClientCursor) -> None:
        """Leaves the sampler's generators as DataLoader leaves them when the epoch is over."""
        if self._plans is not None:
            self._plans.ended(cursor)

    def ran_out(self, cursor: ClientCursor, run_out: Callable[[], object]) -> None:
        """Calls run_out() when DataLoader's sampler would be at its end though the epoch goes on: it does to the
        generators what the sampler does there."""
        if self._plans is not None:
            self._plans.ran_out(cursor, run_out)

    def _say(self, message: Message) -> None:
        # Progress first: what it says of cursors is about those that there were.
        self._tell_progress()
        self._link.send(message)

    def _until_planned(self, cursor: ClientCursor, timeout_s: float) -> int:
        self._drain()
        with contextlib.suppress(EndOfEpoch):
            cursor.pass_voids()
            if not cursor.is_offered:
                return self._wait_for(cursor, timeout_s)
        return 0

    def close(self) -> None:
        """Ends the session in order (rule 8). Batches that are still held stay valid. Idempotent."""
        if self._closed:
            return
        self._closed = True
        kill_point("client.close.begun")
        self._tell_progress()
        attachment = self._attachment
        # Before the Goodbye: what that ends is not to be taken for a death.
        self._link.stay()
        if attachment is not None:
            attachment.note_departure()
            attachment.reclaim()
        if attachment is not None and (released := attachment.take_released()):
            self._link.send(Consumed(-1, 0, released))
        kill_point("client.close.released")
        self._link.send(Goodbye())
        kill_point("client.close.told")
        if attachment is None or not attachment.held:
            self._end_after_close()
        else:
            # The daemon may reuse the slots of held batches once the connection has ended: the last one ends it.
            _outliving.add(self)
            attachment.when_all_are_dropped(self._end_after_close)

    def _end_after_close(self) -> None:
        # First the lock on our record: once the connection has ended, the record may be another's.
        if self._attachment is not None:
            self._attachment.close()
        self._link.close()
        _outliving.discard(self)

    def stats(self) -> dict[str, Any]:
        """Returns counts since the loader was made, times in seconds; the bad samples that were named, and their
        number."""
        counts = self._attachment.stats() if self._attachment is not None else {"yielded": 0}
        bad = {"bad_sample_count": self._bad.count, "bad_samples": self._bad.as_dicts()}
        return counts | {"reconnections": self._link.returns} | bad

    def abandon(self) -> None:
        """Closes what a forked child inherited, and sends nothing (rule 9)."""
        self._closed = True
        self._link.abandon()
        if self._attachment is not None:
            self._attachment.close()

    # --- inside ---

    def _come_to_next(self, cursor: ClientCursor, timeout_s: float) -> int:
        """Waits until the cursor's next batch is offered; returns how many microseconds that took."""
        self._undrained += 1
        # Rule 3: each look costs a system call and, when the caches are cold, a good part of a next().
        if self._undrained > DRAIN_EVERY or len(cursor.offers) <= DRAIN_BELOW or self._link.is_lost:
            self._drain()
        if cursor.voids:
            cursor.pass_voids()
        return 0 if cursor.step in cursor.offers else self._wait_for(cursor, timeout_s)

    def _come_to_planned(self, plans: EpochPlans, cursor: ClientCursor, timeout_s: float) -> int:
        """Waits as _come_to_next() does, for a batch or an end of the plan that the trainer means."""
        waited_us = 0
        while True:
            # A plan may become another one during either wait: what was reached by then is of the former plan, and does
            # not count.
            if not cursor.compared:
                waited_us += plans.compare(cursor, timeout_s)
            try:
                waited_us += self._come_to_next(cursor, timeout_s)
            except EndOfEpoch:
                if cursor.compared:
                    raise
            else:
                if cursor.compared:
                    return waited_us

    def _tell_progress(self) -> None:
        message = self._progress.take()
        if message is not None:
            kill_point("client.progress.untold")
            self._link.send(message)
            kill_point("client.progress.told")

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the loader is closed")
        if self._failure is not None:
            raise self._failure

    def _wait_for(self, cursor: ClientCursor, timeout_s: float) -> int:
        """Waits until the cursor's next batch is offered; returns how many microseconds that took."""
        self._tell_progress()
        wait = self._wait = LongWait(self.name, cursor.epoch, cursor.step, timeout_s)
        try:
            self._wait_until_offered(cursor, wait)
        finally:
            self._wait = None
        return wait.waited_us

    def _wait_until_offered(self, cursor: ClientCursor, wait: LongWait) -> None:
        told = False
        fork = self.fork if not self._has_yielded else None
        stuck = StuckFork(fork.pid) if fork is not None else None
        while not cursor.is_offered:
            if cursor.steps is not None and cursor.step >= cursor.steps:
                raise EndOfEpoch
            if self._failure is not None:
                raise self._failure
            self._link.check()
            waited_s = wait.waited_s
            if waited_s >= wait.over_at_s:
                wait.times_out()
                self._link.send(Waiting(cursor.number, True))
            if wait.is_answered or (wait.is_over and self._link.is_lost):
                raise WaitTimedOut(wait.why or self._link.why_silent())
            if waited_s >= wait.name_at_s:
                wait.name(self._link.why_silent())
            if not told and waited_s >= TELL_WAIT_AFTER_S:
                told = True
                self._link.send(Waiting(cursor.number))
            if stuck is not None and waited_s >= stuck.look_at_s and stuck.look(waited_s):
                stuck = self._is_stuck(cursor, stuck, waited_s)
            wake_at_s = wait.wake_at_s if told else min(wait.wake_at_s, TELL_WAIT_AFTER_S)
            if stuck is not None:
                wake_at_s = min(wake_at_s, stuck.look_at_s)
            # Rule 4: the next daemon has not been told.
            told = told and not self._link.is_lost
            self._link.wait(wake_at_s - waited_s)
            self._drain()
            if self._moves is not None:
                raise self._moves
            cursor.pass_voids()

    def _is_stuck(self, cursor: ClientCursor, stuck: StuckFork, waited_s: float) -> StuckFork | None:
        """Raise MustMove where DataLoader would have made the sample in this process. Otherwise ask the daemon, once
        and earlier than usual, to explain the wait. Return what to watch from now on."""
        if not self.spec.workers:
            raise MustMove(", ".join(other_threads()), is_stuck=True)
        if waited_s < NAMES_STUCK_AFTER_S:
            return stuck
        self._link.send(Waiting(cursor.number, True))
        return None

    def _drain(self) -> None:
        self._undrained = 0
        if self._link.come_back():
            self._begin_again()
        while (found := self._receive()) is not None:
            message, fds = found
            if isinstance(message, RingOpened) and len(fds) == 1:
                self._attach(fds[0])
                continue
            close_all(fds)
            self._handle(message)

    def _receive(self) -> tuple[Message, list[int]] | None:
        try:
            return self._link.receive()
        except (UnpicklableError, NoSpaceError, StreamFailedError) as error:
            # What the daemon has asked for cannot be handed over, and it does not ask again.
            self._failure = error
            raise

    def _begin_again(self) -> None:
        """Introduces this session to another daemon (rule 5)."""
        # Dropped: the Hello says all that was not told.
        self._progress.take()
        if self._attachment is not None:
            self._attachment.take_released()
        self._cursors.forget_offers()
        kill_point("client.return.unsaid")
        self._link.send(self._handshake.hello(self.name, self._cursors, self._attachment))
        # Before there is a process that could plan: what the program says of itself may be another order than what is
        # ready.
        if self._plans is not None:
            self._plans.say_again()
        self._link.hand_over_fork()
        for cursor in self._cursors:
            self._tell_shards(cursor.epoch, cursor.shard_states)
        kill_point("client.return.said")

    def _attach(self, fd: int) -> None:
        former = self._attachment
        if former is not None and former.is_to(fd, self._consumer):
            os.close(fd)
            return
        try:
            self._attachment = Attachment(fd, self._consumer, self._generation, former, self._classes)
        except NotOurs:
            # Rule 6.
            self._link.lose()
            return
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
            print_output(message)
        elif isinstance(message, BadSamplesNamed):
            self._bad.named(message)
        elif isinstance(message, SamplesWrote):
            self._moves = MustMove(message.what)
        elif isinstance(message, WaitNamed):
            cursor = self._cursors.get(message.cursor)
            # What comes when nobody waits any more is of no interest.
            if self._wait is not None and cursor is not None and message.step >= cursor.step:
                self._wait.named(message)
        elif isinstance(message, StreamFailed):
            self._failure = stream_failure(message.code, message.message, message.error)
        elif isinstance(message, Refused):
            self._failure = refusal(message)

    def _give_back(self, message: Recall) -> None:
        self._tell_progress()
        given = self._cursors.recalled(message)
        if given is not None:
            self._link.send(GiveBack(*given))
