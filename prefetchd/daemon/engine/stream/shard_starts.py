"""Where a shard's iterator can begin other than at the epoch's first batch: the states that are known. Pure.

Trainers tell what their checkpoints have, workers what they come to. Whoever has no state near a batch goes through all
that is before it.
"""

from __future__ import annotations

from prefetchd.wire.shard_states import MOST_BYTES, ShardState

KEPT = 3
"""States of one shard in one epoch: the latest that were told."""

KEPT_EPOCHS = 4


class ShardStarts:
    """Those of one stream."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._known: dict[tuple[int, int], list[ShardState]] = {}

    def learn(self, epoch: int, shard: int, state: ShardState) -> None:
        """The shard can begin there in that epoch. What is too long is forgotten."""
        if len(state[1]) > MOST_BYTES:
            return
        states = self._known.setdefault((epoch, shard), [])
        states[:] = [each for each in states if each[0] != state[0]][1 - KEPT :] + [state]
        while len(self._known) > KEPT_EPOCHS * self._shards:
            del self._known[next(iter(self._known))]

    def before(self, epoch: int, shard: int, number: int) -> ShardState | None:
        """The nearest one from which the shard's batch `number` can be come to."""
        states = (each for each in self._known.get((epoch, shard), ()) if each[0] <= number)
        return max(states, key=lambda each: each[0], default=None)
