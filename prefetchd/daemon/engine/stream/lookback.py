"""Batches behind the consumer: the latest that were yielded stay in the ring, for one that resumes earlier. Pure.

Of a stream whose epochs are all equal all that was yielded stays, as the next epoch has the same batches; unless an
epoch does not fit the ring: each batch would have gone by the time that it is wanted again.

A holder may have written into what it was handed without a copy. Such a batch stays only with the digest that was taken
before it was offered, and is offered again only when its digest is still that one.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.ring.policy import Ring
from prefetchd.wire.stream_spec import Position


class Lookback:
    """What is kept, the oldest first. All of it is READY, and none of it is leased."""

    def __init__(self, wanted: int, epoch_steps: int = 0) -> None:
        """`wanted` batches are kept, unless that is more than half of the ring; of equal epochs (of `epoch_steps`, else
        0) a whole one."""
        self.wanted = wanted
        self._epoch_steps = epoch_steps
        self.ring_slots = 0
        """That the ring is to have."""
        self._batches: dict[Position, Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, position: Position) -> bool:
        return position in self._batches

    @property
    def slots(self) -> int:
        return sum(batch.span for batch in self._batches.values())

    def has_epoch(self, ring: Ring) -> bool:
        """True when all epochs are equal and one of them fits the ring: what lies behind lies ahead as well."""
        return 0 < self._epoch_steps <= ring.capacity

    def is_used(self, ring: Ring) -> bool:
        """True when batches are kept, or will be once the ring has grown: each needs its digest before it is
        offered."""
        return self.wanted > 0 or 0 < self._epoch_steps * ring.mean_span <= self.ring_slots

    def limit(self, ring: Ring) -> int:
        """Batches that are kept at most."""
        if self.has_epoch(ring):
            return self._epoch_steps
        return min(self.wanted, ring.capacity // 2) if self.wanted else 0

    def keep(self, batch: Batch, ring: Ring) -> bool:
        """False when the batch, which is READY, is not to be kept: the caller evicts it."""
        if not self.limit(ring) or (batch.written and not batch.digest):
            return False
        older = self.take(batch.position)
        if older is not None and older.grant is not None:
            ring.evict(older.grant)
        batch.recalled = batch.urgent = False
        self._batches[batch.position] = batch
        while len(self._batches) > self.limit(ring):
            self.give_way(ring)
        return True

    def take(self, position: Position) -> Batch | None:
        """The batch at `position`, if it is kept; the caller's from now on."""
        return self._batches.pop(position, None)

    def give_way(self, ring: Ring) -> bool:
        """Evicts the oldest; False when there is none."""
        if not self._batches:
            return False
        batch = self._batches.pop(next(iter(self._batches)))
        assert batch.grant is not None
        ring.evict(batch.grant)
        return True
