"""The consuming side of one stream: its cursors, what is offered to them, and what is taken back. Pure."""

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
    """What is to be known of an epoch before a trainer is told of it. Whoever asks has it found out."""

    def has_begun(self, epoch: int) -> bool:
        """True when it can be told how the epoch begins: before its first batch."""

    def has_ended(self, epoch: int) -> bool:
        """True when it can be told how the epoch ends: before its end."""


class Offering:
    """What each cursor is offered; from then on it is leased. `is_awaited` tells whether a consumer of the stream has
    no connection now and may come back."""

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

    def place_cursor(self, key: Key, position: Position, *, waiting: bool) -> None:
        """Creates the cursor, or turns a waiting one into a living one where it stands: what it was offered stays
        offered. A cursor does not move; whoever wants another place closes it and places another."""
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
            # It may be one that goes on under another number.
            others = (each for each in self.cursors_of(key[0]) if not each.waiting and each.epoch == position[0])
            window.cursors[key].plan_confirmed = any(each.plan_confirmed for each in others)
        window.cursors_moved()

    def close_cursor(self, key: Key) -> None:
        """Ends the cursor; unknown ones are ignored. Leases on yielded batches go on."""
        cursor = self.window.cursors.pop(key, None)
        if cursor is not None:
            self._leases.give_back(key, cursor.next)
            self.window.cursors_moved()

    def give_back(self, key: Key, step: int) -> None:
        """The cursor's offers from `step` on are taken back; it gets them again when there is room."""
        cursor = self.window.cursors.get(key)
        if cursor is None:
            return
        position = self.window.lengths.skip_voids((cursor.epoch, step))
        if not cursor.next <= position <= cursor.offered:
            raise ProtocolError(f"cursor {key[1]} gives back from {position}; it was offered up to {cursor.offered}")
        # First the cursor, then the leases: an evicted batch takes back the filling of cursors that still want it.
        cursor.offered, cursor.told = position, step
        cursor.recalled = max(0, cursor.recalled - 1)
        self._leases.give_back(key, position)
        self.window.cursors_moved()

    def wait(self, key: Key) -> None:
        """A call of next() waits for the cursor's next batch; a consumer waits for one at a time."""
        for cursor in self.cursors_of(key[0]):
            cursor.blocked = cursor.key == key and not cursor.waiting

    def recalls(self, *, urgent: bool) -> list[tuple[Hashable, Recall]]:
        """(consumer, Recall) for all who were offered the one batch that is to go, when a living cursor (if `urgent`,
        a blocked one) waits for room and only offers stand in its way. Empty when taking offers back would not help,
        or one is being taken back."""
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
        """Another plan has taken the place of what was offered of the epochs: (consumer, Recall) for all of it. Where
        they end is told anew, and nobody means that plan any more."""
        told: list[tuple[Hashable, Recall]] = []
        for cursor in self.window.cursors.values():
            if cursor.epoch in epochs:
                cursor.told_end = cursor.plan_confirmed = False
                if cursor.offered > cursor.next:
                    told.append(self._recall(cursor, cursor.next[1]))
        return told

    @staticmethod
    def _recall(cursor: Cursor, step: int) -> tuple[Hashable, Recall]:
        cursor.recalled += 1
        return cursor.consumer, Recall(cursor.key[1], step)  # type: ignore[index]

    def yielded_up_to(self, key: Key, step: int) -> int:
        """The consumer's next() has come to `step` of the cursor's epoch; how many batches further that is."""
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
        # What is told of while offers are on their way back may be of the plan before this one.
        cursor.plan_confirmed = cursor.plan_confirmed or (batches > 0 and not cursor.recalled)
        return batches

    def close_cursors(self, consumer: Hashable) -> Position | None:
        """Ends the consumer's cursors. The position of its furthest-behind living one, else of its waiting one:
        where the ring stays."""
        ended = {key: each for key, each in self.window.cursors.items() if each.consumer == consumer}
        for key in ended:
            self.close_cursor(key)  # type: ignore[arg-type]
        living = [cursor.next for cursor in ended.values() if not cursor.waiting]
        return min(living or [cursor.next for cursor in ended.values()], default=None)

    def drop_consumer(self, consumer: Hashable, marks: Sequence[int]) -> Position | None:
        """The process is gone: its cursors and leases end. Returns what close_cursors does."""
        self._leases.drop(consumer, marks)
        return self.close_cursors(consumer)

    def keep_for_absent(self, consumer: Hashable, record: int) -> Position | None:
        """The consumer's connection has ended, though it lives: it may come back, and until it knows it takes what it
        was offered. All that stays leased, to its record; its cursors end. Returns what close_cursors does."""
        self._leases.keep_for_absent(consumer, record)
        return self.close_cursors(consumer)

    # --- publications ---

    def has_news(self, consumer: Hashable) -> bool:
        """True when `publications` would tell the consumer something."""
        return any(self._can_offer(cursor) for cursor in self.cursors_of(consumer))

    def publications(self, consumer: Hashable) -> list[Message]:
        """All that is ready and was not told, as messages: at most BATCHES_A_PUBLICATION batches and
        FAILURES_A_PUBLICATION failures, so ask again. From here on these batches are leased."""
        rows: list[tuple[int, ...]] = []
        ends: list[tuple[int, ...]] = []
        voids: list[tuple[int, ...]] = []
        failures: list[Message] = []
        room = BATCHES_A_PUBLICATION
        for cursor in self.cursors_of(consumer):
            number = cursor.key[1]  # type: ignore[index]
            while room and len(failures) < FAILURES_A_PUBLICATION and self._can_offer(cursor):
                position = cursor.offered
                if cursor.told < position[1]:
                    voids.append((number, position[0], cursor.told, position[1]))
                    cursor.told = position[1]
                if self.window.lengths.is_end(position):
                    ends.append((number, position[0], position[1]))
                    cursor.told_end = True
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
            self._leases.lease(cursor, batch, exclusive=not private)
            room -= 1
            self._pass(cursor)
            position = cursor.offered
            if cursor.told < position[1] or not self._can_offer(cursor) or self.window.lengths.is_end(position):
                break
            batch = self.window.batches[position]
            if batch.error is not None or self._is_shared(cursor, batch) != private:
                break
        return tuple(run)

    def _can_offer(self, cursor: Cursor) -> bool:
        position = cursor.offered
        if position[0] != cursor.epoch:
            return False
        if self.window.lengths.is_end(position):
            return not cursor.told_end and self._is_known_how(position[0], ends=True)
        batch = self.window.batches.get(position)
        if batch is None or not batch.done or not batch.plan_verified or cursor.recalled:
            return False
        if self.window.epoch_steps and cursor.waiting and self._is_awaited_before(cursor, position):
            return False
        if batch.recalled:
            # It is to go, unless somebody has come to need it meanwhile.
            if not self.window.is_awaited(batch, urgent=batch.urgent):
                return False
            batch.recalled = False
        # What is offered cannot be taken back without its consumer: on a shared stream half stays here.
        share = self.window.limit(cursor) // (2 if self.shareable else 1)
        if self.window.lengths.distance(cursor.next, position) >= max(1, share):
            return False
        return self._is_known_how(position[0])

    def _is_known_how(self, epoch: int, *, ends: bool = False) -> bool:
        known = self._known
        return known is None or (known.has_begun(epoch) and (not ends or known.has_ended(epoch)))

    def _pass(self, cursor: Cursor) -> None:
        epoch, step = cursor.offered
        cursor.offered, cursor.told = self.window.lengths.skip_voids((epoch, step + 1)), step + 1
        if cursor.fill < cursor.offered:
            cursor.fill = self.window.lengths.after((epoch, step)) if cursor.waiting else cursor.offered

    def _is_shared(self, cursor: Cursor, batch: Batch) -> bool:
        """True when somebody else was offered the batch or may be: then all get copies, for each may write to its. So
        does whoever comes while others hold batches: each may hold half of the ring, and two would hold all of it."""
        window = self.window
        if self._is_awaited() or self._leases.others_hold(cursor.consumer):
            return True
        if batch.grant is not None and window.ring is not None and window.ring.leases(batch.grant.slot):
            return True
        others = [each for each in window.cursors.values() if each is not cursor]
        if window.epoch_steps:
            # Its own next iterator's gets the batch once it is given back, and its digest is what it was.
            others = [each for each in others if not each.waiting or each.consumer != cursor.consumer]
        return any(other.consumer != cursor.consumer or other.wants(batch.position) for other in others)

    def _is_awaited_before(self, cursor: Cursor, position: Position) -> bool:
        """Where all epochs are equal: an iterator that has begun is to have the batch before the next one."""
        return any(each.wants(position) for each in self.cursors_of(cursor.consumer) if not each.waiting)

    def cursors_of(self, consumer: Hashable) -> list[Cursor]:
        """The consumer's."""
        return [cursor for cursor in self.window.cursors.values() if cursor.consumer == consumer]

    def _drop_failed(self, position: Position, passer: Cursor) -> None:
        batch = self.window.batches.get(position)
        if batch is None or batch.error is None:
            return
        if not any(each is not passer and each.wants(position) for each in self.window.cursors.values()):
            self.window.drop(batch)
