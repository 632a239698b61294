"""Keeps the states from which a shard's iterator can begin other than at the epoch's first batch. Pure. Decision 0023
has the reasons.

Trainers tell the states in their checkpoints, workers those that they come to. An iterator without a state near its
batch goes through all that is before it.
"""

from __future__ import annotations

from prefetchd.wire.shard_states import MOST_BYTES, ShardState

KEPT = 3
"""The number of states of one shard in one epoch that are kept: the latest that were told."""

KEPT_EPOCHS = 4


class ShardStarts:
    """Keeps the states of one stream's shards."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._known: dict[tuple[int, int], list[ShardState]] = {}

    def learn(self, epoch: int, shard: int, state: ShardState) -> None:
        """Adds a state from which the shard can begin in that epoch. One that is too long is not kept."""
        if len(state[1]) > MOST_BYTES:
            return
        states = self._known.setdefault((epoch, shard), [])
        states[:] = [each for each in states if each[0] != state[0]][1 - KEPT :] + [state]
        while len(self._known) > KEPT_EPOCHS * self._shards:
            del self._known[next(iter(self._known))]

    def before(self, epoch: int, shard: int, number: int) -> ShardState | None:
        """Returns the nearest state from which the shard's batch `number` can be reached; None when there is none."""
        states = (each for each in self._known.get((epoch, shard), ()) if each[0] <= number)
        return max(states, key=lambda each: each[0], default=None)
