"""Decides when the shards of an iterable dataset begin an epoch: all together. Pure. Decision 0145 has the reasons.

The worker of one shard may wait, in the dataset's __iter__ or in its first sample, until the workers of all others have
come there. DataLoader's workers all begin with the epoch, so such a dataset works there.

1. A worker begins its shard's iterator in a task of its own (`Piece.begins`). In that task it takes the first batch
   too, and keeps that until a task asks for it. A beginning needs no slot, no measured batch, and no turn: how many
   workers may be busy at once does not bound beginnings.
2. When a worker is given a batch of an epoch that it has not begun, it begins the epoch first. All other shards that
   have not ended in the epoch are to begin it too (`wanted`), each as soon as its worker is ready.
3. A beginning is wanted again when its worker dies or cannot do it. After MOST_DEATHS deaths it is not: then the
   shard's first batch begins the iterator, and Blame judges the deaths.
4. A shard that had begun in a worker that is gone begins alone: all others are past their beginnings. When that takes
   ALONE_S, its worker may be waiting for them: then they drop their iterators and begin anew, once.
5. A worker that is to end after its tasks may be waiting for others that have ended: when its beginning takes ALONE_S,
   it is killed. That is no death of rule 3.
6. Where the kernel kills workers for memory, shards share workers. One worker cannot be at two beginnings at once: when
   the first one takes SHARED_S, the stream fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.ring.cursors import EpochLengths
from prefetchd.wire.stream_spec import Position

MOST_DEATHS = 2
ALONE_S = 10.0
SHARED_S = 60.0
"""As long as a call of next() waits before its cause is named."""
KEPT = 4096
"""The number of beginnings that are remembered."""

Key: TypeAlias = tuple[int, int]
"""(epoch, shard)"""


class ShardBegins:
    """The beginnings of one stream's shards, of which there are two or more."""

    def __init__(self, shards: int, rows: int, lengths: EpochLengths) -> None:
        """`rows` are a batch's at most."""
        self.wanted: dict[Key, Position] = {}
        """Each shard that is to begin, with the first batch that is wanted of it."""
        self._shards = shards
        self._rows = rows
        self._lengths = lengths
        self._begun: dict[Key, None] = {}
        self._deaths: dict[Key, int] = {}

    def before(self, piece: Piece, stands: Mapping[Key, int]) -> Piece | None:
        """Returns the beginning that goes before `piece` (rule 2), in a worker whose iterators stand as in `stands`;
        None when there is none."""
        if piece.has_no_rows or self.key(piece.batch.position) in stands:
            return None
        epoch, step = piece.batch.position
        for each in range(step, step + self._shards):
            self._want((epoch, each))
        return self.take(self.key(piece.batch.position))

    def take(self, key: Key) -> Piece | None:
        """Returns the wanted beginning, which is under way from then on; None when it is not wanted any more."""
        position = self.wanted.pop(key, None)
        if position is None or self._has_ended(position):
            return None
        return self._piece(position, again=key in self._begun)

    def anew(self, piece: Piece, stands: Mapping[Key, int]) -> list[Piece]:
        """Returns the beginnings anew for `piece`, which takes long, of a worker's shards (rule 4). `stands` are that
        worker's."""
        epoch = piece.batch.position[0]
        keys = [key for key in stands if key[0] == epoch and key != self.key(piece.batch.position)]
        positions = [(epoch, stands[key] * self._shards + key[1]) for key in keys]
        return [self._piece(each, anew=True) for each in positions if not self._has_ended(each)]

    def begun(self, piece: Piece) -> None:
        """Notes that the beginning is done."""
        key = self.key(piece.batch.position)
        self._begun.pop(key, None)
        self._begun[key] = None
        self._deaths.pop(key, None)
        while len(self._begun) > KEPT:
            del self._begun[next(iter(self._begun))]

    def lost(self, piece: Piece, *, died: bool) -> None:
        """Notes that the beginning has ended without being done; `died` says that its worker died of it (rule 3)."""
        key = self.key(piece.batch.position)
        if died:
            self._deaths[key] = self._deaths.pop(key, 0) + 1
            while len(self._deaths) > KEPT:
                del self._deaths[next(iter(self._deaths))]
        # Workers that wait for one another must come to their epochs in the same order.
        others = dict(self.wanted)
        self.wanted.clear()
        self._want(piece.batch.position)
        self.wanted.update(others)

    def key(self, position: Position) -> Key:
        """Returns the epoch and the shard of the batch at `position`."""
        return position[0], position[1] % self._shards

    def _want(self, position: Position) -> None:
        key = self.key(position)
        if self._deaths.get(key, 0) < MOST_DEATHS and not self._has_ended(position):
            self.wanted.setdefault(key, position)

    def _has_ended(self, position: Position) -> bool:
        return self._lengths.is_void(position) or self._lengths.is_end(position)

    def _piece(self, position: Position, *, again: bool = False, anew: bool = False) -> Piece:
        batch = Batch(position, self._rows, whole=True)
        return Piece(batch, 0, self._rows, begins=True, again=again, anew=anew)
