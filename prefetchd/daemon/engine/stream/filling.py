"""What comes back from workers about one stream's pieces, and what becomes of their batches with it. Pure."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch, Piece, cut
from prefetchd.daemon.engine.stream.blame import Blame
from prefetchd.daemon.engine.stream.claims import Claims
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import pass_voids


class Filling:
    """Follows each claimed batch until it is ready, failed, or nobody's. While the window looks back, a batch's digest
    is taken before it is offered."""

    def __init__(self, window: Window, claims: Claims, blame: Blame) -> None:
        self.window = window
        self._claims = claims
        self._queue = claims.queue
        self._blame = blame

    def measured(self, piece: Piece, worker: int, *, by_rows: bool, pieces: int) -> None:
        """The first batch is known; it waits for the ring. What has been made of it, the first sample or the whole,
        stays with its worker until then: no sample is made twice for it."""
        batch = piece.batch
        self._claims.whole_only = not by_rows
        batch.whole = self._claims.whole_only
        batch.under_way -= 1
        if self._ends_cancelled(batch):
            return
        batch.pending = cut(batch, pieces)
        batch.pending[0].keeper = worker
        self._claims.roomless.append(batch)

    def filled(self, piece: Piece, payload_bytes: int) -> bool:
        """The piece is done; True when its batch is ready with it."""
        batch = piece.batch
        batch.under_way -= 1
        if batch.error is not None:
            self._settle_failed(batch)
            return False
        if self._ends_cancelled(batch) or batch.under_way or batch.pending:
            return False
        if batch.whole and piece.rows != batch.rows:
            self._refill_whole(batch)
            return False
        batch.payload_bytes = payload_bytes
        self._blame.settled(batch.position)
        assert self.window.ring is not None
        if self.window.lookback.is_used(self.window.ring):
            self._queue.add_digest(batch)
            return False
        self._complete(batch)
        return True

    def digested(self, piece: Piece, digest: int) -> bool:
        """The digest of all that is in the batch; True when the batch is ready with it for the first time."""
        batch = piece.batch
        batch.under_way -= 1
        if self._ends_cancelled(batch):
            return False
        if not batch.digest:
            batch.digest = digest
            self._complete(batch)
            return True
        if digest == batch.digest:
            batch.filled = True
            batch.written = False
        else:
            self._give_up_room(batch)
            self.window.remove(batch)
        return False

    def _complete(self, batch: Batch) -> None:
        assert self.window.ring is not None
        assert batch.grant is not None
        # The record first: whoever reads READY in it after a kill may trust the payload.
        self.window.record_filled(batch)
        self.window.ring.fill(batch.grant)
        batch.filled = True

    def deviates(self, piece: Piece) -> None:
        """A row does not fit the layout, or is left out: the batch is filled whole, once its other pieces are in."""
        batch = piece.batch
        batch.under_way -= 1
        batch.whole = True
        batch.pending.clear()
        if batch.error is not None:
            self._settle_failed(batch)
        elif not self._ends_cancelled(batch) and not batch.under_way:
            self._refill_whole(batch)

    def too_large(self, piece: Piece, span: int, worker: int) -> None:
        """The batch needs `span` slots; `worker` keeps it until they are free."""
        batch = piece.batch
        batch.under_way -= 1
        batch.whole = True
        self._give_up_room(batch)
        if self._ends_cancelled(batch):
            return
        batch.span = span
        batch.pending = cut(batch, 1)
        batch.pending[0].keeper = worker
        self._claims.roomless.append(batch)

    def failed(self, piece: Piece, error: bytes) -> bool:
        """The batch cannot be made; the trainer gets `error` in its place. True when that is to be told."""
        batch = piece.batch
        batch.under_way -= 1
        self._claims.forget_measuring(batch)
        first = batch.error is None
        batch.error = error
        batch.pending.clear()
        self._blame.settled(batch.position)
        self._settle_failed(batch)
        return first and not batch.cancelled

    def shard_ended(self, piece: Piece) -> None:
        """There is no such batch; the lengths know by now. Neither are those that have become void with it."""
        window = self.window
        piece.batch.under_way -= 1
        piece.batch.cancelled = True
        self._blame.settled(piece.batch.position)
        self._claims.forget_measuring(piece.batch)
        self._ends_cancelled(piece.batch)
        for cursor in window.cursors.values():
            pass_voids(cursor, window.lengths)
        for batch in list(window.batches.values()):
            if window.lengths.is_void(batch.position) or window.lengths.is_end(batch.position):
                if not batch.under_way:
                    self._claims.forget_measuring(batch)
                window.drop(batch)

    def refuse_room(self, batch: Batch, error: bytes) -> None:
        """The batch waits for room that there will never be; the trainer gets `error` in its place."""
        self._claims.roomless.remove(batch)
        batch.pending.clear()
        batch.error = error
        self._settle_failed(batch)

    def lost(self, piece: Piece) -> None:
        """The worker died, for certain: its rows go first."""
        batch = piece.batch
        batch.under_way -= 1
        piece.keeper = None
        if self._claims.forget_measuring(batch):
            self.window.remove(batch)
            return
        if batch.error is not None:
            self._settle_failed(batch)
        elif not self._ends_cancelled(batch):
            if batch.whole and piece.rows != batch.rows and not piece.digests:
                if not batch.under_way:
                    self._refill_whole(batch)
                return
            batch.pending.append(piece)
            self._queue.add([piece], first=True)

    def forget_keeper(self, worker: int) -> None:
        """`worker` is gone, and what it kept with it: others make it again."""
        for batch in self.window.batches.values():
            for piece in batch.pending:
                if piece.keeper == worker:
                    piece.keeper = None

    def _refill_whole(self, batch: Batch) -> None:
        batch.pending = cut(batch, 1)
        self._queue.add(batch.pending, first=True)

    def _settle_failed(self, batch: Batch) -> None:
        # Its slot is free again only when no other worker writes to it.
        if not batch.under_way:
            self._give_up_room(batch)
            if batch.cancelled:
                self.window.remove(batch)

    def _ends_cancelled(self, batch: Batch) -> bool:
        if batch.cancelled and not batch.under_way:
            self._give_up_room(batch)
            self.window.remove(batch)
        return batch.cancelled

    def _give_up_room(self, batch: Batch) -> None:
        if batch.grant is not None:
            assert self.window.ring is not None
            self.window.free(batch.grant)
            batch.grant = None
