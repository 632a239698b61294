"""The window decides what one stream keeps: its cursors, the batches it has claimed, and which of them anybody wants.
Pure. The rules, whose reasons are in decision 0011:

1. Living cursors share the ring evenly. A waiting cursor, which the next iterator takes over, has what they leave
   (`limit`); nothing while the stream's epochs are not made ahead of time (`ahead`).
2. A batch is wanted when some cursor will be offered it within its share (`is_wanted`). One that is wanted no more
   stays until its room is needed: a cursor may come back to it.
3. Room is made for a batch in this order, and what is leased is never evicted (`make_room`):
   a. batches that nobody wants, but for those that lie on the way to this one: they have merely left a share of the
      ring that has become smaller, and will be wanted before it;
   b. what lies behind the consumers (`lookback`);
   c. where a living cursor awaits this very batch, the filled batch whose turn comes last, unless a living cursor
      awaits that one. A blocked cursor may take one that another awaits but has not asked for yet: else more iterators
      than slots could wait for one another for ever;
   d. where no cursor lives, a filled batch that comes later than this one: who follows a progress file never says
      that it waits. Of two that two cursors come to at the same time neither is later, and none gives way while
      batches that nobody wants are under way: each cursor keeps its share until these leave theirs.
4. Filling stops when the high watermark is reached. It goes on below the low one, and whenever a next() waits or, where
   no cursor lives, may wait unheard (`may_fill`).
5. A batch that is dropped while it is filled ends with its last task, one that is leased with its last lease (`drop`).
6. When an iterator begins whose program reads live state, batches that were made before may be of another state. They
   are dropped, except those that living cursors come to (`begin_anew`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.lookback import Lookback
from prefetchd.ring.cursors import Cursor, EpochLengths, forget_from
from prefetchd.ring.policy import Grant, Ring, SlotState
from prefetchd.wire.messages import AHEAD
from prefetchd.wire.segment_layout import SLOT_CONTINUED, SLOT_FILLING, SLOT_READY, SlotRecord
from prefetchd.wire.stream_spec import Position


class Window:
    """Holds the stream's cursors over its ring.

    `ring` is None until the first batch was measured. `batches` holds what is claimed and can still be offered
    to anybody; an exclusively offered batch is not in it: `lent` counts these. `lookback` has those that were yielded
    and are kept. `write` receives every change of a slot's record.
    """

    def __init__(
        self,
        lengths: EpochLengths,
        write: Callable[[int, SlotRecord], None],
        low_watermark: int = 0,
        high_watermark: int = 0,
        lookback: int = 0,
        epoch_steps: int = 0,
    ) -> None:
        """`epoch_steps` is 0 unless all epochs are equal: then all cursors walk epoch 0, and end with it."""
        self.lengths = lengths
        self.lookback = Lookback(lookback, epoch_steps)
        self.epoch_steps = epoch_steps
        self.lent: Counter[Position] = Counter()
        self.ring: Ring | None = None
        self.wanted_slots = 0
        """The slots that the ring has, or is to have as soon as there is memory behind them."""
        self.batches: dict[Position, Batch] = {}
        self.cursors: dict[Hashable, Cursor] = {}
        self.ahead = AHEAD
        """Whether batches of an epoch are made before it begins: AHEAD, HELD or LIVE of wire.messages."""
        self.why_not_ahead = ""
        """The trainer's reason for HELD or LIVE."""
        self._write = write
        self.set_watermarks(low_watermark, high_watermark)
        self._cursors_moved = False
        # Rule 4: between the watermarks it stays as it is.
        self._filling = True

    def set_watermarks(self, low: int, high: int) -> None:
        """Sets the numbers of ready batches at which filling resumes and stops; 0 means the ring's size."""
        self._low = low
        self._high = high

    # --- how much each cursor may have ahead ---

    @property
    def capacity(self) -> int:
        """The number of batches that may be ready at once, ahead of all cursors."""
        slots = 1
        if self.ring is not None:
            slots = self.ring.capacity
            if not self.lookback.has_epoch(self.ring):
                slots -= self.lookback.limit(self.ring)
        return max(1, min(self._high, slots) if self._high else slots)

    def limit(self, cursor: Cursor) -> int:
        """Returns how many batches `cursor` may have ahead (rule 1)."""
        living = 0
        for each in self.cursors.values():
            living += not each.waiting
        if not cursor.waiting:
            return max(1, self.capacity // max(1, living))
        if self.ahead != AHEAD:
            return 0
        ahead = sum(self.lengths.distance(each.next, each.fill) for each in self.cursors.values() if not each.waiting)
        rest = max(0 if living else 1, (self.capacity - ahead) // (len(self.cursors) - living))
        rest = min(rest, cursor.reach)
        return min(rest, self.epoch_steps - cursor.next[1]) if self.epoch_steps else rest

    def ready_ahead(self) -> int:
        """Counts the batches that are ready and not yet yielded."""
        offered = sum(self.lengths.distance(each.next, each.offered) for each in self.cursors.values())
        ready = int(self.ring.count(SlotState.READY) / self.ring.mean_span) if self.ring else 0
        return offered + max(0, ready - len(self.lookback))

    def fill_ratio(self, cursor: Cursor) -> float:
        """Returns the batches ahead of the cursor relative to the low watermark: the neediest cursor has the least."""
        low = min(self._low, self.capacity) if self._low else self.capacity
        return self.lengths.distance(cursor.next, cursor.fill) / max(1, low)

    def may_fill(self) -> bool:
        """True while batches may be claimed (rule 4). Who follows a progress file may use the batch where it stands,
        and want the one after it."""
        if self._low and self._high and self._low < self._high:
            ready = self.ready_ahead()
            if ready >= self.capacity:
                self._filling = False
            elif ready < self._low:
                self._filling = True
        if self._filling or any(each.blocked for each in self.cursors.values()):
            return True
        near = (self.lengths.distance(each.next, each.fill) < 2 for each in self.cursors.values())
        return all(each.waiting for each in self.cursors.values()) and any(near)

    def resume(self) -> None:
        """Lets filling go on up to the high watermark, however many batches are ready: some before them are not."""
        self._filling = True

    # --- what is wanted ---

    def is_wanted(self, position: Position) -> bool:
        """True when some cursor will be offered the batch at `position` before the ring turns over."""
        return any(
            cursor.wants(position)
            and cursor.walks(position)
            and self.lengths.distance(cursor.next, position) < self.limit(cursor)
            for cursor in self.cursors.values()
        )

    def is_ahead(self, position: Position) -> bool:
        """True when some cursor comes to the batch at `position`, be it after the ring has turned over."""
        return any(cursor.wants(position) and cursor.walks(position) for cursor in self.cursors.values())

    def is_claimed(self, position: Position) -> bool:
        """True when there is a batch at `position`, or will be, and it is the one that is wanted there."""
        batch = self.batches.get(position)
        return batch is not None and batch.plan_verified

    def comes_back(self, position: Position) -> bool:
        """True when a batch is not to be made for a cursor that comes there: all epochs are equal, and somebody holds
        it."""
        return self.epoch_steps > 0 and self.lent[position] > 0 and position not in self.lookback

    def lend(self, position: Position, key: Hashable) -> None:
        """Takes the batch out of the window: it is the cursor's alone. Others that counted on it, the next iterator's
        if all epochs are equal, begin again there."""
        del self.batches[position]
        if self.epoch_steps:
            for cursor in self.cursors.values():
                if cursor.key != key:
                    forget_from(cursor, position)

    def cursors_moved(self) -> None:
        """Notes that cursors came, went or jumped: some batches may be unwanted now."""
        self._cursors_moved = True

    def make_room(self, batch: Batch) -> bool:
        """Frees slots for `batch` as rule 3 orders. Is False when none may be freed."""
        # (a) Only a cursor that has moved makes a batch unwanted.
        if self._cursors_moved:
            self._cursors_moved = False
            unwanted = [each for each in self.batches.values() if not self.is_wanted(each.position)]
            unwanted = [each for each in unwanted if not self._lies_before(each.position, batch.position)]
            if sum(self.drop(each) for each in unwanted if each is not batch):
                return True
        # (b)
        if self.ring is not None and self.lookback.give_way(self.ring):
            return True
        # (c) and (d)
        awaited = self.is_awaited(batch)
        if not awaited and not all(each.waiting for each in self.cursors.values()):
            return False
        urgent = self.is_awaited(batch, urgent=True)
        evictable = [each for each in self.batches.values() if each.filled and self._may_evict(each, urgent)]
        if not awaited:
            if any(each.cancelled and each.under_way and each.grant is not None for each in self.batches.values()):
                return False
            evictable = [each for each in evictable if self._comes_later(each.position, batch.position)]
        return bool(evictable) and self.drop(max(evictable, key=lambda each: self.turn(each.position)))

    def is_awaited(self, batch: Batch, *, urgent: bool = False) -> bool:
        """True when a living cursor (if `urgent`, a blocked one) can yield nothing before this batch."""
        return any(
            each.next == batch.position and (each.blocked if urgent else not each.waiting)
            for each in self.cursors.values()
        )

    def _lies_before(self, position: Position, wanted: Position) -> bool:
        """True when some cursor is to be offered the batch at `position` before the one at `wanted`."""
        coming = (each for each in self.cursors.values() if each.wants(position) and each.walks(position))
        return position < wanted and any(each.wants(wanted) for each in coming)

    def _may_evict(self, batch: Batch, urgent: bool) -> bool:
        assert batch.grant is not None
        assert self.ring is not None
        return not self.ring.leases(batch.grant.slot) and not self.is_awaited(batch, urgent=urgent)

    def _comes_later(self, position: Position, than: Position) -> bool:
        """True when the first cursor to come to `position` comes later than the first one to come to `than`."""
        lead, cursor = self._first_to_come(position)
        other_lead, other_cursor = self._first_to_come(than)
        return lead > other_lead or (lead == other_lead and cursor is other_cursor and position > than)

    def lead(self, position: Position) -> int:
        """Returns how many batches come before `position` for the cursor that gets there first."""
        return self._first_to_come(position)[0]

    def _first_to_come(self, position: Position) -> tuple[int, Cursor | None]:
        """Returns the cursor that gets to `position` first, if any does, and how many batches come before for it."""
        coming = (each for each in self.cursors.values() if each.next <= position and each.walks(position))
        leads = ((self.lengths.distance(each.next, position), each) for each in coming)
        return min(leads, key=lambda lead_and_cursor: lead_and_cursor[0], default=(0, None))

    def drop(self, batch: Batch) -> bool:
        """Takes the batch out of the window. False when it is under way or leased: then it ends later (rule 5)."""
        batch.pending.clear()
        batch.cancelled = True
        if batch.under_way:
            return False
        grant = batch.grant
        if grant is not None and self.ring is not None:
            if self.ring.leases(grant.slot):
                batch.cancelled = False
                return False
            self.free(grant)
        self.remove(batch)
        return True

    def void(self, batch: Batch) -> None:
        """Takes a batch out of the window in whose place another is wanted. One that is under way or leased ends later
        (rule 5), and is nobody's until then."""
        self.drop(batch)
        batch.cancelled = True
        self.remove(batch)

    def begin_anew(self, beginner: Cursor) -> list[Batch]:
        """Drop all batches that were made before `beginner` begins, except those that other living cursors come to
        (rule 6). Return the dropped ones."""
        others = [each for each in self.cursors.values() if not each.waiting and each is not beginner]
        dropped = [
            batch
            for batch in self.batches.values()
            if not any(each.wants(batch.position) and each.walks(batch.position) for each in others)
        ]
        for batch in dropped:
            self.void(batch)
        while self.ring is not None and self.lookback.give_way(self.ring):
            pass
        return dropped

    def free(self, grant: Grant) -> None:
        """Frees slots to which nobody writes and which nobody leases."""
        assert self.ring is not None
        if self.ring.state(grant.slot) is SlotState.FILLING:
            self.ring.abandon(grant)
        else:
            self.ring.evict(grant)

    def retire(self, batch: Batch) -> None:
        """Keeps a batch behind, or evicts it: its last lease has ended, and nobody wants it."""
        assert self.ring is not None
        assert batch.grant is not None
        self.remove(batch)
        self.ring.keep(batch.grant)
        if not self.lookback.keep(batch, self.ring):
            self.ring.evict(batch.grant)

    def remove(self, batch: Batch) -> None:
        """Takes the batch out of the window; cursors that counted on it begin again there."""
        if self.batches.get(batch.position) is batch:
            del self.batches[batch.position]
            for cursor in self.cursors.values():
                forget_from(cursor, batch.position)

    def adopt_behind(self, batch: Batch) -> None:
        """Keeps a batch of a dead daemon that was yielded, if there is room and no better one at its position. To be
        called for the oldest first."""
        assert self.ring is not None
        assert batch.grant is not None
        if batch.position not in self.batches:
            self.ring.adopt(batch.grant, quarantined=False)
            if not self.lookback.keep(batch, self.ring):
                self.ring.evict(batch.grant)

    def turn(self, position: Position) -> tuple[int, Position]:
        """Returns a key that orders positions by when a cursor comes there. Of two that seem equally far, as the
        lengths of the epochs between are not known, the later one comes later."""
        return self.lead(position), position

    # --- records, for recovery and status ---

    def record_claim(self, batch: Batch) -> None:
        assert batch.grant is not None
        grant = batch.grant
        following = (*grant.slots[1:], -1)
        for slot, after in list(zip(grant.slots, following))[:0:-1]:
            self._write(slot, SlotRecord(SLOT_CONTINUED, 1, grant.generation, *batch.position, next_slot=after))
        self._write(
            grant.slot,
            SlotRecord(SLOT_FILLING, grant.span, grant.generation, *batch.position, next_slot=following[0]),
        )

    def record_filled(self, batch: Batch) -> None:
        assert batch.grant is not None
        grant = batch.grant
        after = grant.slots[1] if grant.span > 1 else -1
        self._write(
            grant.slot,
            SlotRecord(
                SLOT_READY,
                grant.span,
                grant.generation,
                *batch.position,
                batch.payload_bytes,
                batch.digest,
                next_slot=after,
                plan=batch.plan,
            ),
        )
