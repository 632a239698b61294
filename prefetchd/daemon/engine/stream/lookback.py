"""Lookback keeps batches behind the consumer: the latest that were yielded stay in the ring, for one that resumes
earlier. Pure. The rules, whose reasons are in decisions 0020 (digests) and 0070 (equal epochs):

1. The latest `wanted` batches stay, but no more than half of the ring.
2. Of a stream whose epochs are all equal a whole epoch stays, as the next one has the same batches; unless an epoch
   does not fit the ring: then each batch would be gone by the time that it is wanted again, and only rule 1 holds.
3. A holder may have written into a batch that it was handed without a copy. Such a batch stays only with a digest that
   was taken before it was offered, and is offered again only when its digest is still the same.
4. The oldest batch goes first, when another one comes or its room is needed. What is kept is READY and not leased.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.ring.policy import Ring
from prefetchd.wire.stream_spec import Position


class Lookback:
    """Holds the batches that are kept, the oldest first."""

    def __init__(self, wanted: int, epoch_steps: int = 0) -> None:
        """`wanted` is the number of batches to keep (rule 1); `epoch_steps` the length of an epoch where all are equal,
        else 0."""
        self.wanted = wanted
        self._epoch_steps = epoch_steps
        self.ring_slots = 0
        """The slots that the ring is to have."""
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
        """Returns how many batches are kept at most (rules 1 and 2)."""
        if self.has_epoch(ring):
            return self._epoch_steps
        return min(self.wanted, ring.capacity // 2) if self.wanted else 0

    def keep(self, batch: Batch, ring: Ring) -> bool:
        """Keeps the batch, which is READY. False when it is not to be kept: then the caller evicts it."""
        if not self.limit(ring) or (batch.written and not batch.digest):
            return False
        # A batch may have been made twice: the later one is kept, with its own slots.
        older = self.take(batch.position)
        if older is not None and older.grant is not None:
            ring.evict(older.grant)
        batch.recalled = batch.urgent = False
        self._batches[batch.position] = batch
        while len(self._batches) > self.limit(ring):
            self.give_way(ring)
        return True

    def distrust(self, node: str, ring: Ring) -> None:
        """Evicts the batches that `node` made."""
        for position in [position for position, batch in self._batches.items() if batch.node == node]:
            batch = self._batches.pop(position)
            assert batch.grant is not None
            ring.evict(batch.grant)

    def take(self, position: Position) -> Batch | None:
        """Removes the batch at `position` and returns it, or None when it is not kept. It is the caller's from then
        on."""
        return self._batches.pop(position, None)

    def give_way(self, ring: Ring) -> bool:
        """Evicts the oldest batch; False when there is none."""
        if not self._batches:
            return False
        batch = self._batches.pop(next(iter(self._batches)))
        assert batch.grant is not None
        ring.evict(batch.grant)
        return True
