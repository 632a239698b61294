"""Who holds which batch of one stream: leases, and what becomes of a batch when its last one ends. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence

from prefetchd.daemon.engine.stream.batches import Batch, Lease
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import Cursor
from prefetchd.ring.policy import Grant
from prefetchd.wire.stream_spec import Position

Key = tuple[Hashable, int]
"""(consumer, the number that it gave its cursor)."""


@dataclasses.dataclass(frozen=True)
class Absent:
    """Holds what is leased to the consumer of `record` while that has no connection."""

    record: int


class Leases:
    """A lease begins with the publication of a batch and ends with the release of its holder. `marks[slot]` is
    everywhere the generation that a consumer was handed without a copy: such a batch may have been written to."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._leases: dict[Key, dict[int, Lease]] = {}

    def lease(self, cursor: Cursor, batch: Batch, *, exclusive: bool) -> None:
        """The cursor is offered the batch; an exclusive one leaves the window with it."""
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
        """Ends a lease. Late and unknown releases are harmless."""
        ring = self.window.ring
        grant = ring.grant_of(slot, generation) if ring is not None else None
        leases = self._leases.get(key)
        if grant is None or leases is None or slot not in leases or leases[slot].grant != grant:
            return
        self._end(key, leases[slot], returned=False)

    def give_back(self, key: Key, position: Position) -> None:
        """What the cursor was offered from `position` on can be offered again."""
        for lease in list(self._leases.get(key, {}).values()):
            if lease.batch.position >= position:
                self._end(key, lease, returned=True)

    def doubt(self, epochs: range) -> None:
        """The plan of the epochs is another: what was made after the former one is yet to be verified."""
        leased = [lease.batch for leases in self._leases.values() for lease in leases.values()]
        for batch in [*self.window.batches.values(), *leased]:
            if batch.position[0] in epochs:
                batch.plan_verified = False

    def recallable(self, urgent: bool) -> list[Batch]:
        """Batches that could be evicted if those who were offered them gave them back: nobody has yielded them, and no
        living cursor awaits them. When the need is urgent, no blocked one."""
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
        """True while anything is leased to somebody else, be it one that has closed its loader."""
        return any(key[0] != consumer for key in self._leases)

    def held(self, consumer: Hashable) -> int:
        """Batches in the consumer's hands, offered or yielded."""
        return sum(len(leases) for key, leases in self._leases.items() if key[0] == consumer)

    def slots_given_out(self) -> int:
        """Slots whose batches next() has given out and whose tensors live, as far as the daemon was told."""
        found: set[int] = set()
        for key, leases in self._leases.items():
            cursor = self.window.cursors.get(key)
            for lease in leases.values():
                if cursor is None or lease.batch.position < cursor.next:
                    found.update(lease.grant.slots)
        return len(found)

    # --- consumers that are gone, and those whose connection has ended, though they live ---

    def adopt(self, batch: Batch, records: Collection[int], *, exclusive: bool) -> None:
        """A batch that a former daemon made: it is leased to those of its living consumers that may still take it, or
        hold it. If they only copy it, others may be offered it meanwhile, unless there is another one for them."""
        assert batch.grant is not None
        exclusive = exclusive or batch.position in self.window.batches
        for record in records:
            self._hold((Absent(record), 0), batch, batch.grant, exclusive=exclusive)
        if not (records and exclusive):
            self.window.batches[batch.position] = batch
        self.window.cursors_moved()

    def drop(self, consumer: Hashable, marks: Sequence[int]) -> None:
        """The process is gone: all its leases end."""
        for key in [key for key in self._leases if key[0] == consumer]:
            for lease in list(self._leases[key].values()):
                self._end(key, lease, returned=not _is_marked(lease, marks))

    def keep_for_absent(self, consumer: Hashable, record: int) -> None:
        """All that is leased to the consumer is from now on leased to its record."""
        absent: Key = (Absent(record), 0)
        for key in [key for key in self._leases if key[0] == consumer]:
            for lease in list(self._leases[key].values()):
                self._hold(absent, lease.batch, lease.grant, exclusive=lease.exclusive)
                self._end(key, lease, returned=True)

    def resolve_absent(self, record: int, marks: Sequence[int], held: Mapping[tuple[int, int], Key]) -> None:
        """The absent consumer has come back, or died: `held` says for each (slot, generation) whose tensors live which
        cursor of its new session leases it. What it has not been handed without a copy (`marks`) can be offered
        again."""
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
        """The absent consumer will not come back, though it lives: only what it was handed without a copy (`marks`)
        stays leased to it."""
        key: Key = (Absent(record), 0)
        for lease in list(self._leases.get(key, {}).values()):
            if not _is_marked(lease, marks):
                self._end(key, lease, returned=True)
        self.window.cursors_moved()

    def _end(self, key: Key, lease: Lease, *, returned: bool) -> None:
        """Ends the lease. A batch that its holder may have written to (exclusive and not returned) is done with; any
        other stays while somebody wants it."""
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
            # Whoever gives it back has not begun again there yet, unless there is another one.
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
