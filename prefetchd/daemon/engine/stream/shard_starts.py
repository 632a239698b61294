"""Keeps the states from which a shard's iterator can begin other than at the epoch's first batch, and says which one a
worker is to be sent. Pure. Decision 0023 has the reasons.

1. Trainers tell the states in their checkpoints, workers those that they come to. An iterator without a state near its
   batch goes through all that is before it.
2. Of each shard in each epoch the KEPT states that were told last are kept, each place once; of the shards that were
   told of first all are forgotten once there are those of more than KEPT_EPOCHS epochs.
3. A worker is sent the nearest state before its batch, unless its iterator of the shard comes from the batch before.
   One that begins a shard stands where the state does that it was sent, or before the epoch's first batch.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import ShardCame, ShardStart
from prefetchd.wire.shard_states import MOST_BYTES, ShardState, pack
from prefetchd.wire.stream_spec import POSITION_LIMIT

KEPT = 3
"""The number of states of one shard in one epoch that are kept."""

KEPT_EPOCHS = 4


class ShardStarts:
    """Keeps the states of one stream's shards; a stream of another kind has 0 of them."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._known: dict[tuple[int, int], list[ShardState]] = {}

    def take(self, message: ShardStart | ShardCame) -> None:
        """Notes that an iterator of the shard can begin at that batch. Raises ProtocolError."""
        indices = (message.epoch, message.following)
        if not 0 <= message.shard < self._shards or not all(0 <= each < POSITION_LIMIT for each in indices):
            raise ProtocolError(f"no shard {message.shard} has a state in a stream of {self._shards} shards")
        self.learn(message.epoch, message.shard, (message.following, message.state))

    def learn(self, epoch: int, shard: int, state: ShardState) -> None:
        """Adds a state from which the shard can begin in that epoch (rule 2). One that is too long is not kept."""
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

    def task_keys(self, piece: Piece, stands: dict[tuple[int, int], int]) -> bytes:
        """Returns Fill.keys for the piece: the keys of the batch, or where its shard's iterator is to begin (rule 3).
        Notes in `stands` where the worker's iterators will be."""
        if not self._shards or piece.has_no_rows:
            return piece.batch.keys
        epoch, step = piece.batch.position
        number, shard = divmod(step, self._shards)
        stands_at = stands.pop((epoch, shard), None)
        if piece.begins:
            start = self.before(epoch, shard, number)
            stands[epoch, shard] = start[0] if start is not None else 0
            return pack(start) if start is not None else b""
        stands[epoch, shard] = number + 1
        while len(stands) > KEPT_EPOCHS * self._shards:
            del stands[next(iter(stands))]
        start = self.before(epoch, shard, number) if stands_at != number else None
        return pack(start) if start is not None else b""
