"""Filling follows each claimed batch of one stream from task to task, until it is ready, failed, or nobody's. Pure. The
rules, whose reasons are in decisions 0009 (measuring), 0010 (larger batches), 0018 (deaths), 0020 (digests) and 0023
(shards):

1. A batch is ready when all its pieces are in. While the window looks back, its digest is taken before: a task of its
   own.
2. When a batch is ready, its record says so before anything else does: whoever reads READY in it after a kill may trust
   the payload.
3. A batch that is cancelled, or has failed, keeps its slots until its last task has ended: a worker may write to them.
4. What a worker has made of a batch for which there is no room (its first sample, or the whole batch) stays with that
   worker, the piece's `keeper`: nothing is made twice for it. If the worker dies, others make it again.
5. A batch of which a row does not fit the layout, or is left out, is filled again as one task, once its other pieces
   are in.
6. A piece whose worker has died, or has given it up, goes to workers again, before all new ones. A batch that was being
   measured is claimed anew.
7. A batch that was offered before is ready again when its digest is what it was. Else a holder has written to it, and
   it is dropped.
8. A batch that fails has its error in its place. That is news once, and not of a batch that nobody wants any more.
9. What another machine has made is made here once more, as long as that machine is to be proved: it is ready when the
   two are equal, and made anew when they are not (decision 0120).
10. A batch that was made before its epoch began is checked when that begins, if files were read for it: it is offered
    when they are what they were, and made anew when they are not. One that has failed is made anew in any case: a file
    may have been written just then (decision 0130). Of each shard the first batch that is made after the epoch has
    begun is checked, too: the shard may have begun, and read files, before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from prefetchd.daemon.engine.stream.batches import Batch, Piece, cut
from prefetchd.daemon.engine.stream.blame import Blame
from prefetchd.daemon.engine.stream.claims import Claims
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import pass_voids
from prefetchd.ring.shard_lengths import ShardLengths
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import TOO_MANY_FILES


class Filling:
    """Takes in what workers answer about pieces of one stream's batches. Each answer ends one task of its batch."""

    def __init__(self, window: Window, claims: Claims, blame: Blame, shard_lengths: ShardLengths | None = None) -> None:
        """`shard_lengths` are the window's lengths where the stream has shards."""
        self.window = window
        self._shard_lengths = shard_lengths
        # (epoch, shard) of which the next batch is to be checked.
        self._first_due: set[tuple[int, int]] = set()
        self._claims = claims
        self._queue = claims.queue
        self._blame = blame

    def measured(self, piece: Piece, worker: int, *, by_rows: bool, pieces: int) -> None:
        """Notes that the first batch is measured; it waits for the ring, and `worker` keeps what it has made of it
        (rule 4)."""
        batch = piece.batch
        self._claims.whole_only = not by_rows
        batch.whole = self._claims.whole_only
        batch.under_way -= 1
        if self._ends_cancelled(batch):
            return
        batch.pending = cut(batch, pieces)
        batch.pending[0].keeper = worker
        self._claims.roomless.append(batch)

    def filled(self, piece: Piece, payload_bytes: int, opened: bytes = b"") -> bool:
        """Notes that the piece is done, for which these files were `opened`; True when its batch is ready with it."""
        batch = piece.batch
        batch.under_way -= 1
        if opened:
            batch.opened.append(opened)
        if batch.error is not None:
            self._free_failed(batch)
            return False
        if self._ends_cancelled(batch) or batch.under_way or batch.pending:
            return False
        if batch.whole and piece.rows != batch.rows:
            self._refill_whole(batch)
            return False
        if self._shard_lengths is not None:
            epoch, step = batch.position
            if (key := (epoch, step % self._shard_lengths.shards)) in self._first_due:
                self._first_due.remove(key)
                batch.check_due = True
        if batch.check_due and TOO_MANY_FILES in batch.opened:
            self._give_up_room(batch)
            self.window.remove(batch)
            return False
        batch.payload_bytes = payload_bytes
        self._blame.forget(batch.position)
        assert self.window.ring is not None
        if self.window.lookback.is_used(self.window.ring):
            self._queue.add_digest(batch)
            return False
        self._complete(batch)
        return True

    def made_elsewhere(
        self, piece: Piece, payload_bytes: int, node: str, rows: tuple[int, int], opened: bytes = b""
    ) -> None:
        """Notes that `node` has made the whole batch, of which these `rows` are to be compared before it is ready (rule
        9), and for which the files were `opened`."""
        batch = piece.batch
        batch.under_way -= 1
        if opened:
            batch.opened.append(opened)
        if batch.error is not None:
            self._free_failed(batch)
        elif not self._ends_cancelled(batch):
            batch.payload_bytes = payload_bytes
            batch.pending = [Piece(batch, *rows, node=node)]
            self._queue.add(batch.pending, first=True)

    def taken_back(self, piece: Piece, pieces: int) -> None:
        """Hands out again, in so many pieces, a batch that another machine has not made, and does not write any
        more."""
        batch = piece.batch
        if batch.whole or batch.error is not None or batch.cancelled:
            self.lost(piece)
            return
        batch.under_way -= 1
        # What was read elsewhere counts no more.
        batch.opened.clear()
        batch.pending = cut(batch, pieces)
        self._queue.add(batch.pending, first=True)

    def differs(self, piece: Piece, pieces: int) -> None:
        """Has a batch made anew, in so many pieces, that is not what it was elsewhere (rule 9)."""
        self.taken_back(dataclasses.replace(piece, node=""), pieces)

    def digested(self, piece: Piece, digest: int) -> bool:
        """Notes the digest of all that is in the batch; True when the batch is ready with it for the first time (rules
        1 and 7)."""
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
        # Rule 2.
        self.window.record_filled(batch)
        self.window.ring.fill(batch.grant)
        batch.filled = True
        if batch.check_due:
            self._check(batch)

    def check_files(self, batches: Iterable[Batch], epoch: int) -> None:
        """Have the files checked that were read for `batches`, which were made before `epoch` began. Drop those that
        have failed (rule 10)."""
        if self._shard_lengths is not None:
            living = {each.epoch for each in self.window.cursors.values() if not each.waiting}
            self._first_due = {key for key in self._first_due if key[0] in living}
            self._first_due |= {(epoch, shard) for shard in range(self._shard_lengths.shards)}
        for batch in batches:
            batch.check_due = True
            if batch.error is not None:
                self._void(batch)
            elif batch.filled:
                self._check(batch)

    def _check(self, batch: Batch) -> None:
        if not batch.opened:
            batch.check_due = False
        elif TOO_MANY_FILES in batch.opened:
            self.window.drop(batch)
        else:
            batch.filled = False
            self._queue.add_check(batch)

    def files_checked(self, piece: Piece, *, unchanged: bool) -> None:
        """Offer a batch whose files are unchanged. Drop another one: it is made anew where it is wanted. A batch of a
        shard's iterator follows from all files that were read before it in the epoch, so all that come later go with
        it."""
        batch = piece.batch
        batch.under_way -= 1
        batch.check_due = False
        if self._ends_cancelled(batch):
            return
        if unchanged:
            batch.filled = True
            return
        self._void(batch)
        if self._shard_lengths is not None:
            epoch, step = batch.position
            for each in list(self.window.batches.values()):
                if each.position[0] == epoch and each.position[1] > step:
                    self.window.void(each)

    def _void(self, batch: Batch) -> None:
        """Drop a batch that is made again. Its shard's iterator may end elsewhere then."""
        self.window.void(batch)
        if self._shard_lengths is not None:
            self._shard_lengths.forget_shards(batch.position[0])

    def deviates(self, piece: Piece) -> None:
        """Notes that a row does not fit the layout, or is left out (rule 5)."""
        batch = piece.batch
        batch.under_way -= 1
        batch.whole = True
        batch.pending.clear()
        if batch.error is not None:
            self._free_failed(batch)
        elif not self._ends_cancelled(batch) and not batch.under_way:
            self._refill_whole(batch)

    def too_large(self, piece: Piece, span: int, worker: int) -> None:
        """Notes that the batch needs `span` slots; `worker` keeps it until they are free (rule 4)."""
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
        """Puts `error` in the place of a batch that cannot be made. True when that is news (rule 8)."""
        batch = piece.batch
        batch.under_way -= 1
        self._claims.forget_measuring(batch)
        first = batch.error is None
        if batch.check_due and first:
            # Rule 10: made again, it may not fail.
            batch.pending.clear()
            batch.cancelled = True
            self._ends_cancelled(batch)
            if self._shard_lengths is not None:
                self._shard_lengths.forget_shards(batch.position[0])
            return False
        batch.error = error
        batch.pending.clear()
        self._blame.forget(batch.position)
        self._free_failed(batch)
        return first and not batch.cancelled

    def check_shard_end(self, piece: Piece, batches: int) -> None:
        """Raises ProtocolError when the shard of the piece's batch cannot have ended after so many batches."""
        _, step = piece.batch.position
        if self._shard_lengths is None or not 0 <= batches <= step // self._shard_lengths.shards:
            raise ProtocolError(f"a shard of {batches} batches has not ended at step {step}")

    def shard_ended(self, piece: Piece, batches: int) -> None:
        """Drops the piece's batch, which does not exist, as its shard has only `batches` of the epoch. Drops those that
        have become void with it. Only after check_shard_end()."""
        window, (epoch, step) = self.window, piece.batch.position
        assert self._shard_lengths is not None
        self._shard_lengths.learn_shard(epoch, step % self._shard_lengths.shards, batches)
        piece.batch.under_way -= 1
        piece.batch.cancelled = True
        self._blame.forget(piece.batch.position)
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
        """Puts `error` in the place of a batch that waits for room that there will never be."""
        self._claims.roomless.remove(batch)
        batch.pending.clear()
        batch.error = error
        self._free_failed(batch)

    def lost(self, piece: Piece) -> None:
        """Hands out again a piece that its worker has not done and, for certain, does not write to any more (rule
        6)."""
        batch = piece.batch
        batch.under_way -= 1
        piece.keeper = None
        if self._claims.forget_measuring(batch):
            self.window.remove(batch)
            return
        if batch.error is not None:
            self._free_failed(batch)
        elif not self._ends_cancelled(batch):
            if batch.whole and piece.rows != batch.rows and not piece.has_no_rows:
                if not batch.under_way:
                    self._refill_whole(batch)
                return
            batch.pending.append(piece)
            self._queue.add([piece], first=True)

    def forget_keeper(self, worker: int) -> None:
        """Has others make what `worker`, which is gone, kept."""
        for batch in self.window.batches.values():
            for piece in batch.pending:
                if piece.keeper == worker:
                    piece.keeper = None

    def _refill_whole(self, batch: Batch) -> None:
        batch.pending = cut(batch, 1)
        self._queue.add(batch.pending, first=True)

    def _free_failed(self, batch: Batch) -> None:
        # Rule 3.
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
