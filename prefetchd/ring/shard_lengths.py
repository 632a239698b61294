"""Learns which steps of an iterable dataset's epochs have a batch, as its shards end one by one. Pure.

Step t belongs to shard t mod `shards`, and is that shard's batch number t // shards: the order in which DataLoader's
workers take turns. A shard that has ended leaves its later steps void, as a worker that has ended is passed over; the
epoch ends with the last batch of its last shard. Decision 0023 has the reasons.
"""

from __future__ import annotations

from prefetchd.ring.cursors import EpochLengths
from prefetchd.wire.stream_spec import Position

KEPT_EPOCHS = 4096
"""How many epochs' shards are remembered. More than are ready ahead: an end that is forgotten costs an iterator that is
run to it again."""


class ShardLengths(EpochLengths):
    """The epochs' lengths of one stream of shards. For all but the latest epochs only the number of batches is kept;
    where shards end is learnt again when needed."""

    def __init__(self, shards: int) -> None:
        super().__init__(None)
        self.shards = shards
        self._batches: dict[int, dict[int, int]] = {}
        self._ends: dict[int, int] = {}

    def learn_shard(self, epoch: int, shard: int, batches: int) -> None:
        """Records that the shard has only `batches` batches in the epoch."""
        known = self._batches.setdefault(epoch, {})
        known[shard] = min(batches, known.get(shard, batches))
        # The epoch's end is known with the last of its shards' ends, and not before.
        if len(known) == self.shards:
            self._ends[epoch] = max((each - 1) * self.shards + at + 1 if each else 0 for at, each in known.items())
            self.learn(epoch, sum(known.values()))
        while len(self._batches) > KEPT_EPOCHS:
            oldest = next(iter(self._batches))
            del self._batches[oldest]
            self._ends.pop(oldest, None)

    def forget_shards(self, epoch: int) -> None:
        """Forget where the epoch's shards end: they are iterated over anew, and may end elsewhere."""
        self._batches.pop(epoch, None)
        self._ends.pop(epoch, None)
        self.forget(range(epoch, epoch + 1))

    def steps(self, epoch: int) -> int | None:
        return self._ends.get(epoch)

    def is_void(self, position: Position) -> bool:
        epoch, step = position
        batches = self._batches.get(epoch, {}).get(step % self.shards)
        return batches is not None and step // self.shards >= batches and not self.is_end(position)

    def skip_voids(self, position: Position) -> Position:
        epoch, step = position
        while self.is_void((epoch, step)):
            step += 1
        # Whoever passed void steps before the end was known may have passed that as well.
        steps = self.steps(epoch)
        return epoch, step if steps is None else min(step, steps)

    def after(self, position: Position) -> Position:
        return self.skip_voids(super().after(position))

    def _batches_before(self, position: Position) -> int:
        epoch, step = position
        rounds, shard = divmod(step, self.shards)
        absent = sum(max(0, rounds + (at < shard) - batches) for at, batches in self._batches.get(epoch, {}).items())
        return step - absent
