"""The piece queue holds pieces of claimed batches that wait for workers, in the order in which they are handed out.
Pure."""

from __future__ import annotations

import bisect
import itertools
from collections import deque

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.blame import Blame
from prefetchd.daemon.engine.stream.shard_affinity import ShardAffinity
from prefetchd.wire.stream_spec import Position


class PieceQueue:
    """Queues the pieces of one stream. What must run alone, as `blame` says, waits apart (next_suspect). Pieces whose
    batch was dropped meanwhile are passed over."""

    def __init__(self, blame: Blame, affinity: ShardAffinity | None) -> None:
        """Takes from `affinity` which worker makes which batch; without it any worker does."""
        self._blame = blame
        self._affinity = affinity
        # Those that go first, by position: the batch of a later one may be waited for last. And all others.
        self._first: deque[Piece] = deque()
        self._pieces: deque[Piece] = deque()
        self._suspects: deque[Piece] = deque()

    def __bool__(self) -> bool:
        return bool(self._first or self._pieces)

    def add(self, pieces: list[Piece], *, first: bool = False) -> None:
        """Queues pending pieces; `first` ones before all others, those of earlier positions before those of later
        ones."""
        for piece in list(pieces):
            parts = self._blame.parts(piece)
            if len(parts) > 1:
                piece.batch.pending.remove(piece)
                piece.batch.pending += parts
            for part in parts:
                if self._blame.is_suspect(part):
                    self._pass_over_dropped_suspects()
                    self._suspects.append(part)
                elif first:
                    bisect.insort(self._first, part, key=lambda each: each.batch.position)
                else:
                    self._pieces.append(part)

    def add_digest(self, batch: Batch) -> None:
        """Queues the task that takes the digest of all that is in the batch, before all others: it is short, and the
        batch waits for nothing else."""
        batch.pending = [Piece(batch, 0, 0, digests=True)]
        self.add(batch.pending, first=True)

    def add_check(self, batch: Batch) -> None:
        """Queue the task that checks the files that were read for the batch, before all others."""
        batch.pending = [Piece(batch, 0, 0, checks=True)]
        self.add(batch.pending, first=True)

    def take(self, worker: int) -> Piece | None:
        """Returns the first piece that `worker` can do; it is under way from then on. None when there is none."""
        found = self._take_from(self._first, worker) or self._take_from(self._pieces, worker)
        return _begun(found) if found is not None else None

    def _take_from(self, pieces: deque[Piece], worker: int) -> Piece | None:
        others: list[Piece] = []
        found: Piece | None = None
        while pieces and found is None:
            piece = pieces.popleft()
            if piece not in piece.batch.pending:
                continue
            if self._owner(piece) in (None, worker):
                found = piece
            else:
                others.append(piece)
        # They keep their order: a shard's batches are made one after another.
        pieces.extendleft(reversed(others))
        return found

    def is_about(self, position: Position) -> bool:
        """True when a sample of the batch at `position` may end its worker."""
        return self._blame.is_about(position)

    def expecting(self) -> set[int]:
        """Returns the workers for which a piece waits that no other can do."""
        waiting = itertools.chain(self._first, self._pieces)
        return {owner for piece in waiting if (owner := self._owner(piece)) is not None}

    @property
    def is_crowded(self) -> bool:
        """True when so many pieces wait for their own workers that no more are to be claimed for others."""
        return self._affinity is not None and len(self._first) + len(self._pieces) >= self._affinity.most_waiting

    @property
    def has_suspect(self) -> bool:
        """True while a piece waits that must run alone."""
        return any(piece in piece.batch.pending for piece in self._suspects)

    def next_suspect(self) -> Piece:
        """Returns the next piece that must run alone, only when `has_suspect`; it is under way from then on."""
        self._pass_over_dropped_suspects()
        return _begun(self._suspects.popleft())

    def _pass_over_dropped_suspects(self) -> None:
        while self._suspects and self._suspects[0] not in self._suspects[0].batch.pending:
            self._suspects.popleft()

    def _owner(self, piece: Piece) -> int | None:
        """Returns the only worker for the piece: it keeps what has been made of it, or is the home of its shard. None
        when any worker will do."""
        if piece.keeper is not None:
            return piece.keeper
        return None if self._affinity is None or piece.has_no_rows else self._affinity.of(piece.batch.position)


def _begun(piece: Piece) -> Piece:
    piece.batch.pending.remove(piece)
    piece.batch.under_way += 1
    return piece
