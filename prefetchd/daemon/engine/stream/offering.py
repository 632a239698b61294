"""Offering serves the consumers of one stream: it places their cursors, offers them batches, and takes offers back.
Pure. The rules, whose reasons are in decisions 0011 (offers, recalls, copies), 0017 (shared streams), 0021 (plans) and
0070 (equal epochs):

1. A cursor is offered the batches of its epoch in order, each when all its rows are in or its error is known, and its
   plan is verified. From then on the batch is leased. While a recall is unanswered, the cursor is offered no batch.
2. Where a sampler decides the order, no batch of an epoch is offered before the trainer can be told how the epoch
   begins, and its end is not told before it can be told how it ends (`EpochsKnown`).
3. A cursor may have its share of the ring ahead (`Window.limit`), offered and not yet yielded; on a stream that can be
   shared only half of that, for what is offered cannot be had back without its consumer. One batch it may always have.
4. Where all epochs are equal, a waiting cursor is offered a batch only after the living cursors of its consumer.
5. An offer is exclusive when nobody else may have the batch. Else it is private: each holder makes a copy, for each may
   write to its batch. It is private (`_is_shared`)
   a. while a consumer without a connection may come back, and while anything is leased to another consumer;
   b. when the batch is leased already, or another consumer has a cursor;
   c. when another cursor of the same consumer wants the batch; but for the waiting one where all epochs are equal,
      which gets the batch after it was given back, if its digest is what it was.
6. When a living cursor (if urgent, a blocked one) awaits a batch that finds no room, and only offers stand in its way,
   one batch is recalled: of those that nobody has yielded and no such cursor awaits, the last in turn. It is evicted
   when all have given it back, unless one has come to await it meanwhile. There is no further recall before that.
7. When the plan of an epoch is void, all that was offered of the epoch is recalled, its end is told anew, and no cursor
   confirms the plan any more. Until a recall is answered, what its consumer yields confirms nothing either: that may be
   of the former plan.
8. An error is offered like a batch, without a slot. It goes when the last cursor that wants it has passed it.
9. A waiting cursor is offered no error, and no batch for which files were read, and is told no end. When its iterator
   begins, files are checked and what has failed is made again (Filling).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.leases import Key, Leases
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import Cursor, new_cursor
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import BatchFailed, Message, Published, Recall
from prefetchd.wire.stream_spec import Position

BATCHES_A_PUBLICATION = 1024
FAILURES_A_PUBLICATION = 64


class EpochsKnown(Protocol):
    """Knows what a trainer must be told of an epoch before it is offered a batch of it (rule 2)."""

    def has_begun(self, epoch: int) -> bool:
        """True when a trainer can be told how the epoch begins: before its first batch."""

    def has_ended(self, epoch: int) -> bool:
        """True when a trainer can be told how the epoch ends: before it is told that it has ended."""

    def want_beginning(self, epoch: int) -> None:
        """Has found out how the epoch begins, unless that is known."""

    def want_end(self, epoch: int) -> None:
        """Has found out how the epoch ends, unless that is known."""


class Offering:
    """Offers batches to the cursors of one stream. `known` is None where the order is arithmetic; `is_awaited` says
    whether a consumer of the stream has no connection now and may come back."""

    def __init__(
        self,
        window: Window,
        leases: Leases,
        known: EpochsKnown | None = None,
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        self.window = window
        self._known = known
        self._is_awaited = is_awaited
        self.shareable = False
        self._leases = leases

    @property
    def consumers(self) -> set[Hashable]:
        return {cursor.consumer for cursor in self.window.cursors.values()}

    # --- cursors ---

    def place_cursor(self, key: Key, position: Position, *, waiting: bool, anew: bool = False) -> list[Batch]:
        """Creates the cursor, or turns a waiting one into a living one where it stands: what it was offered stays
        offered. A cursor does not move; whoever wants another place closes it and places another. With `anew` the
        batches go that were made before (Window.begin_anew); they are returned."""
        window = self.window
        cursor = window.cursors.get(key)
        if cursor is None:
            window.cursors[key] = new_cursor(key, key[0], position, waiting, window.lengths)
        elif waiting or not cursor.waiting or cursor.next != window.lengths.skip_voids(position):
            raise ProtocolError(f"cursor {key[1]} at {cursor.next} cannot be placed at {position}")
        else:
            cursor.waiting = False
            if cursor.fill[0] != position[0]:
                cursor.fill = (position[0], window.lengths.steps(position[0]) or 0)
        if not waiting:
            # A client may number its iterator anew: its consumer has confirmed the plan of this epoch already.
            others = (each for each in self.cursors_of(key[0]) if not each.waiting and each.epoch == position[0])
            window.cursors[key].plan_confirmed = any(each.plan_confirmed for each in others)
        window.cursors_moved()
        return window.begin_anew(window.cursors[key]) if anew and not waiting else []

    def close_cursor(self, key: Key) -> None:
        """Ends the cursor, and gives back what it was offered and has not yielded. Unknown cursors are ignored. Leases
        on yielded batches go on."""
        cursor = self.window.cursors.pop(key, None)
        if cursor is not None:
            self._leases.give_back(key, cursor.next)
            self.window.cursors_moved()

    def give_back(self, key: Key, step: int) -> None:
        """Takes the cursor's offers from `step` on back; it gets them again when there is room. Raises ProtocolError
        for a step that it was not offered."""
        cursor = self.window.cursors.get(key)
        if cursor is None:
            return
        position = self.window.lengths.skip_voids((cursor.epoch, step))
        if not cursor.next <= position <= cursor.offered:
            raise ProtocolError(f"cursor {key[1]} gives back from {position}; it was offered up to {cursor.offered}")
        # First the cursor, then the leases: an evicted batch takes back the filling of cursors that still want it.
        cursor.offered, cursor.informed_to = position, step
        cursor.recalled = max(0, cursor.recalled - 1)
        self._leases.give_back(key, position)
        self.window.cursors_moved()

    def wait(self, key: Key) -> None:
        """Notes that a call of next() waits for the cursor's next batch. A consumer waits for one at a time."""
        for cursor in self.cursors_of(key[0]):
            cursor.blocked = cursor.key == key and not cursor.waiting

    def recalls(self, *, urgent: bool) -> list[tuple[Hashable, Recall]]:
        """Returns (consumer, Recall) for all who were offered the one batch that is to go (rule 6). Empty when taking
        offers back would not help, or a recall is unanswered."""
        window = self.window
        assert window.ring is not None
        if any(cursor.recalled for cursor in window.cursors.values()):
            return []
        found = max(self._leases.recallable(urgent), key=lambda each: window.turn(each.position), default=None)
        if found is None:
            return []
        assert found.grant is not None
        found.recalled, found.urgent = True, urgent
        told: list[tuple[Hashable, Recall]] = []
        for key in window.ring.leases(found.grant.slot):
            told.append(self._recall(window.cursors[key], found.position[1]))
        return told

    def void(self, epochs: range) -> list[tuple[Hashable, Recall]]:
        """Returns (consumer, Recall) for all offers of these epochs, whose plan is void (rule 7)."""
        told: list[tuple[Hashable, Recall]] = []
        for cursor in self.window.cursors.values():
            if cursor.epoch in epochs:
                cursor.knows_end = cursor.plan_confirmed = False
                if cursor.offered > cursor.next:
                    told.append(self._recall(cursor, cursor.next[1]))
        return told

    def distrust(self, node: str) -> list[tuple[Hashable, Recall]]:
        """Drops all that `node` made, as one of its batches was wrong: what lies ready, and what lies behind. Returns
        (consumer, Recall) for offers that no next() has yielded yet."""
        window = self.window
        for batch in [each for each in window.batches.values() if each.node == node]:
            window.void(batch)
        if window.ring is not None:
            window.lookback.distrust(node, window.ring)
        firsts = self._leases.distrust(node)
        return [self._recall(window.cursors[key], position[1]) for key, position in firsts.items()]

    @staticmethod
    def _recall(cursor: Cursor, step: int) -> tuple[Hashable, Recall]:
        cursor.recalled += 1
        return cursor.consumer, Recall(cursor.key[1], step)  # type: ignore[index]

    def yielded_up_to(self, key: Key, step: int) -> int:
        """Moves the cursor to `step` of its epoch, to which its consumer's next() has come; returns how many batches
        further that is. Raises ProtocolError for a step that it was not offered."""
        cursor = self.window.cursors.get(key)
        if cursor is None:
            return 0
        position = self.window.lengths.skip_voids((cursor.epoch, step))
        if not cursor.next <= position <= cursor.offered:
            raise ProtocolError(f"cursor {key[1]} yielded up to {position}; it was offered up to {cursor.offered}")
        for passed in range(cursor.next[1], step):
            self._drop_failed((cursor.epoch, passed), cursor)
        batches = self.window.lengths.distance(cursor.next, position)
        cursor.next = position
        cursor.blocked = False
        # Rule 7.
        cursor.plan_confirmed = cursor.plan_confirmed or (batches > 0 and not cursor.recalled)
        return batches

    def close_cursors(self, consumer: Hashable) -> Position | None:
        """Ends the consumer's cursors. Returns the position of its furthest-behind living one, else of its waiting one:
        that is where the ring stays."""
        ended = {key: each for key, each in self.window.cursors.items() if each.consumer == consumer}
        for key in ended:
            self.close_cursor(key)  # type: ignore[arg-type]
        living = [cursor.next for cursor in ended.values() if not cursor.waiting]
        return min(living or [cursor.next for cursor in ended.values()], default=None)

    def drop_consumer(self, consumer: Hashable, marks: Sequence[int]) -> Position | None:
        """Ends the cursors and leases of a consumer whose process is gone. Returns what close_cursors() does."""
        self._leases.drop(consumer, marks)
        return self.close_cursors(consumer)

    def keep_for_absent(self, consumer: Hashable, record: int) -> Position | None:
        """Ends the cursors of a consumer whose connection has ended and whose process lives. Its leases pass to its
        `record`: it may come back, and until it knows of the end it takes what it was offered. Returns what
        close_cursors() does."""
        self._leases.keep_for_absent(consumer, record)
        return self.close_cursors(consumer)

    # --- publications ---

    def prepare(self, consumer: Hashable) -> None:
        """Does what must come before the consumer's next publications: has found out what it is to be told first (rule
        2), and keeps recalled batches that somebody has come to await (rule 6)."""
        for cursor in self.cursors_of(consumer):
            if self._is_ready(cursor):
                batch = self.window.batches.get(cursor.offered)
                if batch is not None:
                    batch.recalled = False
                if self._known is not None and self._has_share(cursor):
                    self._want_known(self._known, cursor.offered)

    def _want_known(self, known: EpochsKnown, position: Position) -> None:
        known.want_beginning(position[0])
        if self.window.lengths.is_end(position) and known.has_begun(position[0]):
            known.want_end(position[0])

    def has_offers(self, consumer: Hashable) -> bool:
        """True when `publications` would tell the consumer something."""
        return any(self._can_offer(cursor) for cursor in self.cursors_of(consumer))

    def publications(self, consumer: Hashable) -> list[Message]:
        """Returns all that is ready and was not yet told, as messages: at most BATCHES_A_PUBLICATION batches and
        FAILURES_A_PUBLICATION failures, so ask again. These batches are leased from here on."""
        rows: list[tuple[int, ...]] = []
        ends: list[tuple[int, ...]] = []
        voids: list[tuple[int, ...]] = []
        failures: list[Message] = []
        room = BATCHES_A_PUBLICATION
        for cursor in self.cursors_of(consumer):
            number = cursor.key[1]  # type: ignore[index]
            while room and len(failures) < FAILURES_A_PUBLICATION and self._can_offer(cursor):
                position = cursor.offered
                if cursor.informed_to < position[1]:
                    voids.append((number, position[0], cursor.informed_to, position[1]))
                    cursor.informed_to = position[1]
                if self.window.lengths.is_end(position):
                    ends.append((number, position[0], position[1]))
                    cursor.knows_end = True
                    break
                batch = self.window.batches[position]
                if batch.error is not None:
                    failures.append(BatchFailed(number, *position, batch.error))
                    self._pass(cursor)
                else:
                    run = self._offer_run(cursor, batch, room)
                    room -= (len(run) - 4) // 2
                    rows.append(run)
        if not (rows or ends or voids):
            return failures
        return [Published(tuple(rows), tuple(ends), tuple(voids)), *failures]

    def _offer_run(self, cursor: Cursor, first: Batch, room: int) -> tuple[int, ...]:
        private = self._is_shared(cursor, first)
        run = [cursor.key[1], *first.position, int(private)]  # type: ignore[index]
        batch = first
        while room:
            assert batch.grant is not None
            run += (batch.grant.slot, batch.grant.generation)
            batch.recalled = False
            self._leases.lease(cursor, batch, exclusive=not private)
            room -= 1
            self._pass(cursor)
            position = cursor.offered
            # One row of the message is one run: consecutive steps, all exclusive or all private. A gap of void steps,
            # an error, the epoch's end, or a batch of the other kind ends it.
            if cursor.informed_to < position[1] or not self._can_offer(cursor) or self.window.lengths.is_end(position):
                break
            batch = self.window.batches[position]
            if batch.error is not None or self._is_shared(cursor, batch) != private:
                break
        return tuple(run)

    def _can_offer(self, cursor: Cursor) -> bool:
        """True when the cursor can be offered its next batch, or be told of its epoch's end."""
        return self._is_ready(cursor) and self._has_share(cursor) and self._is_known_how(cursor.offered)

    def _is_ready(self, cursor: Cursor) -> bool:
        """True when the cursor's next batch is there for it (rules 1, 4 and 6), or its epoch's end is untold."""
        position = cursor.offered
        if position[0] != cursor.epoch:
            return False
        if self.window.lengths.is_end(position):
            # Rule 9: what is learnt of an epoch before it begins may have to be learnt again.
            return not cursor.knows_end and not cursor.waiting
        batch = self.window.batches.get(position)
        if batch is None or not batch.done or not batch.plan_verified or cursor.recalled:
            return False
        if cursor.waiting and (batch.opened or batch.error is not None):
            # Rule 9.
            return False
        if self.window.epoch_steps and cursor.waiting and self._is_awaited_before(cursor, position):
            return False
        # It goes, unless somebody has come to await it.
        return not batch.recalled or self.window.is_awaited(batch, urgent=batch.urgent)

    def _has_share(self, cursor: Cursor) -> bool:
        """True when the cursor may have its next batch ahead too (rule 3); an end takes no room."""
        position = cursor.offered
        if self.window.lengths.is_end(position):
            return True
        share = self.window.limit(cursor) // (2 if self.shareable else 1)
        return self.window.lengths.distance(cursor.next, position) < max(1, share)

    def _is_known_how(self, position: Position) -> bool:
        """True when the trainer can be told first what rule 2 asks for."""
        known = self._known
        if known is None:
            return True
        return known.has_begun(position[0]) and (
            not self.window.lengths.is_end(position) or known.has_ended(position[0])
        )

    def _pass(self, cursor: Cursor) -> None:
        epoch, step = cursor.offered
        cursor.offered, cursor.informed_to = self.window.lengths.skip_voids((epoch, step + 1)), step + 1
        if cursor.fill < cursor.offered:
            cursor.fill = self.window.lengths.after((epoch, step)) if cursor.waiting else cursor.offered

    def _is_shared(self, cursor: Cursor, batch: Batch) -> bool:
        """True when the offer must be private (rule 5)."""
        window = self.window
        # Also while others merely hold batches: two consumers that come and go could each hold half of the ring
        # exclusively, and together all of it.
        if self._is_awaited() or self._leases.others_hold(cursor.consumer):
            return True
        if batch.grant is not None and window.ring is not None and window.ring.leases(batch.grant.slot):
            return True
        others = [each for each in window.cursors.values() if each is not cursor]
        if window.epoch_steps:
            # Rule 5c.
            others = [each for each in others if not each.waiting or each.consumer != cursor.consumer]
        return any(other.consumer != cursor.consumer or other.wants(batch.position) for other in others)

    def _is_awaited_before(self, cursor: Cursor, position: Position) -> bool:
        """True when a living cursor of the same consumer is to have the batch first (rule 4)."""
        return any(each.wants(position) for each in self.cursors_of(cursor.consumer) if not each.waiting)

    def cursors_of(self, consumer: Hashable) -> list[Cursor]:
        """Returns the consumer's cursors, living and waiting."""
        return [cursor for cursor in self.window.cursors.values() if cursor.consumer == consumer]

    def _drop_failed(self, position: Position, passer: Cursor) -> None:
        batch = self.window.batches.get(position)
        if batch is None or batch.error is None:
            return
        if not any(each is not passer and each.wants(position) for each in self.window.cursors.values()):
            self.window.drop(batch)
