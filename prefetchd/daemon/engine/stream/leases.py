"""Leases say who holds which batch of one stream, and what becomes of a batch when its last lease ends. Pure. The
rules, whose reasons are in decisions 0005 (marks), 0011 (exclusive offers) and 0017 (consumers without a connection):

1. A lease begins with the publication of a batch. It ends when its holder releases the batch, gives it back, or is
   gone. A late or unknown release is harmless.
2. An exclusive lease is one of a batch that was offered without a copy. The batch leaves the window (`Window.lent`
   counts it), and nobody else is offered it.
3. `marks[slot]` is, everywhere, the generation that a consumer was handed without a copy in that slot. The holder of
   such a batch may have written to it, whether it says so or not. What it was merely offered it cannot have written to.
4. When the last lease of a batch ends (`_end`), the batch is
   a. evicted, if it was cancelled, or if it was recalled and is given back unwritten;
   b. if the lease was exclusive: ready again when it is given back unwritten and the window has no other batch at its
      position, else kept behind or evicted (`Window.retire`);
   c. else ready as before when it is given back unwritten or a cursor wants it, else kept behind or evicted.
5. A consumer whose connection has ended, though its process lives, keeps its leases: they pass to its record
   (`Absent`). When it comes back, its cursors lease what it still holds, exclusively. When it has closed its loader, it
   keeps only what it was handed without a copy. When it has died, it keeps nothing. What it does not keep ends as in
   rule 4.
6. A batch that a former daemon made is leased to those of its living consumers that may still take it or hold it. If
   they can only copy it, it is offered to others meanwhile, unless the window has another batch at its position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence

from prefetchd.daemon.engine.stream.batches import Batch, Lease
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import Cursor
from prefetchd.ring.policy import Grant
from prefetchd.wire.stream_spec import Position

Key = tuple[Hashable, int]
"""The key of a cursor: (consumer, the number that the consumer gave it)."""


@dataclasses.dataclass(frozen=True)
class Absent:
    """Holds the leases of the consumer of `record` while that consumer has no connection (rule 5)."""

    record: int


class Leases:
    """Keeps the leases of one stream by cursor and slot, and moves batches into and out of its window."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._leases: dict[Key, dict[int, Lease]] = {}

    def lease(self, cursor: Cursor, batch: Batch, *, exclusive: bool) -> None:
        """Leases the batch to the cursor, which is about to be offered it. An exclusive one leaves the window (rule
        2)."""
        ring = self.window.ring
        assert ring is not None
        assert batch.grant is not None
        ring.lease(batch.grant, cursor.key)
        key: Key = cursor.key  # type: ignore[assignment]
        self._leases.setdefault(key, {})[batch.grant.slot] = Lease(key, batch, batch.grant, exclusive)
        if exclusive:
            self.window.lent[batch.position] += 1
            self.window.lend(batch.position, key)

    def _hold(self, key: Key, batch: Batch, grant: Grant, *, exclusive: bool = True) -> None:
        assert self.window.ring is not None
        if grant.slot not in self._leases.get(key, {}):
            self.window.ring.lease(grant, key)
            self._leases.setdefault(key, {})[grant.slot] = Lease(key, batch, grant, exclusive)
            if exclusive:
                self.window.lent[batch.position] += 1

    def release(self, key: Key, slot: int, generation: int) -> None:
        """Ends a lease whose holder has let the batch go. Late and unknown releases are harmless."""
        ring = self.window.ring
        grant = ring.grant_of(slot, generation) if ring is not None else None
        leases = self._leases.get(key)
        if grant is None or leases is None or slot not in leases or leases[slot].grant != grant:
            return
        self._end(key, leases[slot], returned=False)

    def give_back(self, key: Key, position: Position) -> None:
        """Ends the cursor's leases from `position` on: those batches can be offered again."""
        for lease in list(self._leases.get(key, {}).values()):
            if lease.batch.position >= position:
                self._end(key, lease, returned=True)

    def doubt(self, epochs: range) -> None:
        """Marks all batches of these epochs as unverified: their plan is another now, and Claims.prove() is to
        compare."""
        leased = [lease.batch for leases in self._leases.values() for lease in leases.values()]
        for batch in [*self.window.batches.values(), *leased]:
            if batch.position[0] in epochs:
                batch.plan_verified = False

    def distrust(self, node: str) -> dict[Key, Position]:
        """Cancels the leased batches that `node` made: each is evicted when its lease ends. Returns the first of them
        that each cursor was offered and has not yielded."""
        firsts: dict[Key, Position] = {}
        for key, leases in self._leases.items():
            cursor = self.window.cursors.get(key)
            for batch in (lease.batch for lease in leases.values() if lease.batch.node == node):
                batch.cancelled = True
                if cursor is not None and batch.position >= cursor.next:
                    firsts[key] = min(batch.position, firsts.get(key, batch.position))
        return firsts

    def recallable(self, urgent: bool) -> list[Batch]:
        """Returns the batches that could be evicted if all holders gave them back: nobody has yielded them, and no
        living cursor (if `urgent`, no blocked one) awaits them."""
        cursors = self.window.cursors
        ring = self.window.ring
        assert ring is not None
        offered = {id(lease.batch): lease.batch for leases in self._leases.values() for lease in leases.values()}
        return [
            batch
            for batch in offered.values()
            if batch.grant is not None
            and not self.window.is_awaited(batch, urgent=urgent)
            and all(key in cursors and cursors[key].next <= batch.position for key in ring.leases(batch.grant.slot))
        ]

    def is_held(self, consumer: Hashable, slot: int) -> bool:
        """True while the consumer has a lease on the batch in `slot`."""
        ring = self.window.ring
        return ring is not None and any(key[0] == consumer for key in ring.leases(slot))  # type: ignore[index]

    def others_hold(self, consumer: Hashable) -> bool:
        """True while anything is leased to another consumer, even to one that has closed its loader."""
        return any(key[0] != consumer for key in self._leases)

    def held(self, consumer: Hashable) -> int:
        """Counts the batches in the consumer's hands, offered or yielded."""
        return sum(len(leases) for key, leases in self._leases.items() if key[0] == consumer)

    def slots_given_out(self) -> int:
        """Counts the slots whose batches next() has given out and whose tensors live, as far as the daemon was told."""
        found: set[int] = set()
        for key, leases in self._leases.items():
            cursor = self.window.cursors.get(key)
            for lease in leases.values():
                if cursor is None or lease.batch.position < cursor.next:
                    found.update(lease.grant.slots)
        return len(found)

    # --- consumers that are gone, and those whose connection has ended, though they live ---

    def adopt(self, batch: Batch, records: Collection[int], *, exclusive: bool) -> None:
        """Takes in a batch that a former daemon made, with the consumer `records` that may take it or hold it (rule
        6)."""
        assert batch.grant is not None
        exclusive = exclusive or batch.position in self.window.batches
        for record in records:
            self._hold((Absent(record), 0), batch, batch.grant, exclusive=exclusive)
        if not (records and exclusive):
            self.window.batches[batch.position] = batch
        self.window.cursors_moved()

    def drop(self, consumer: Hashable, marks: Sequence[int]) -> None:
        """Ends all leases of a consumer whose process is gone; `marks` tell what it may have written to (rule 3)."""
        for key in [key for key in self._leases if key[0] == consumer]:
            for lease in list(self._leases[key].values()):
                self._end(key, lease, returned=not _is_marked(lease, marks))

    def keep_for_absent(self, consumer: Hashable, record: int) -> None:
        """Leases all that the consumer has to its record from now on (rule 5)."""
        absent: Key = (Absent(record), 0)
        for key in [key for key in self._leases if key[0] == consumer]:
            for lease in list(self._leases[key].values()):
                # The new lease before the old one ends: with no lease at all the batch would be evicted or offered.
                self._hold(absent, lease.batch, lease.grant, exclusive=lease.exclusive)
                self._end(key, lease, returned=True)

    def resolve_absent(self, record: int, marks: Sequence[int], held: Mapping[tuple[int, int], Key]) -> None:
        """Ends the leases of an absent consumer that has come back, or died (rule 5). `held` has, for each (slot,
        generation) whose tensors live, the cursor of its new session that leases it. What `marks` do not tell can be
        offered again."""
        key: Key = (Absent(record), 0)
        # The oldest first: of those that are kept behind the latest are to stay.
        for lease in sorted(self._leases.get(key, {}).values(), key=lambda each: each.grant.generation):
            slot, generation = lease.grant.slot, lease.grant.generation
            holder = held.get((slot, generation))
            if holder is not None:
                self._hold(holder, lease.batch, lease.grant)
            self._end(key, lease, returned=not _is_marked(lease, marks))
        self.window.cursors_moved()

    def absent_departed(self, record: int, marks: Sequence[int]) -> None:
        """Ends the leases of an absent consumer that has closed its loader and lives, but for what `marks` tell that it
        was handed without a copy (rule 5)."""
        key: Key = (Absent(record), 0)
        for lease in list(self._leases.get(key, {}).values()):
            if not _is_marked(lease, marks):
                self._end(key, lease, returned=True)
        self.window.cursors_moved()

    def _end(self, key: Key, lease: Lease, *, returned: bool) -> None:
        """Ends the lease, and decides about the batch if it was the last one (rule 4). `returned` is True when the
        holder gives the batch back unused. An exclusive one that is not returned may have been written to."""
        ring, window = self.window.ring, self.window
        assert ring is not None
        del self._leases[key][lease.grant.slot]
        if not self._leases[key]:
            del self._leases[key]
        if lease.exclusive:
            window.lent[lease.batch.position] -= 1
            if not window.lent[lease.batch.position]:
                del window.lent[lease.batch.position]
            lease.batch.written = lease.batch.written or not returned
        if not ring.release(lease.grant, key):
            return
        batch = lease.batch
        returned = returned and not batch.written
        if batch.cancelled or (batch.recalled and returned):
            ring.evict(lease.grant)
            # remove() sends the cursors that counted on this batch back to its position. It finds only a batch that is
            # in the window; another batch that is there by now stays.
            window.batches.setdefault(batch.position, batch)
            window.remove(batch)
        elif lease.exclusive:
            if returned and batch.position not in window.batches:
                ring.keep(lease.grant)
                window.batches[batch.position] = batch
            else:
                window.retire(batch)
        elif returned or window.is_wanted(batch.position):
            ring.keep(lease.grant)
        else:
            window.retire(batch)


def _is_marked(lease: Lease, marks: Sequence[int]) -> bool:
    slot = lease.grant.slot
    return slot < len(marks) and marks[slot] == lease.grant.generation
