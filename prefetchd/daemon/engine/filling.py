"""The producing side of one stream: claims, pieces for workers, and what comes back from them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.daemon.engine.batches import Batch, Contents, Piece, cut
from prefetchd.daemon.engine.blame import Blame
from prefetchd.daemon.engine.homes import Homes
from prefetchd.daemon.engine.piece_queue import PieceQueue
from prefetchd.daemon.engine.window import Window
from prefetchd.ring.cursors import Cursor, advance_fill, settle
from prefetchd.wire.stream_spec import Position


class Filling:
    """Hands out pieces of the batches that the window wants, earliest first.

    `contents_at` tells what a position has, or None: its plan is yet to come. `whole_only` is set once the stream is
    known not to be filled by rows; `cramped` is set when a batch that a living cursor awaits found no room: offers must
    be recalled; `pressed` when a blocked one awaits it. Pieces wait in `queue`. While the window looks back, each
    batch's digest is taken before it is offered.
    """

    def __init__(
        self,
        window: Window,
        contents_at: Callable[[Position], Contents | None],
        blame: Blame,
        homes: Homes | None = None,
    ) -> None:
        """`homes` tells which worker makes which batch; without it any does."""
        self.window = window
        self.blame = blame
        self.queue = PieceQueue(blame, homes)
        self.whole_only = False
        self._contents_at = contents_at
        self.dropped_for_plan = 0
        self._awaits_plan = False
        self._roomless: list[Batch] = []
        self._measuring: Batch | None = None
        self.cramped = False
        self.pressed = False

    # --- towards the workers ---

    def neediest(self) -> tuple[float, Cursor] | None:
        """The cursor with the fewest batches ahead that may have more, blocked ones first, waiting ones last. While a
        living one's plan is yet to come, no waiting one: its epoch would be planned before its turn."""
        window = self.window
        self._awaits_plan = False
        for waiting in (False, True):
            best: tuple[float, Cursor] | None = None
            for cursor in window.cursors.values():
                if cursor.waiting is not waiting:
                    continue
                position = advance_fill(cursor, window.lengths, window.limit(cursor), window.is_claimed)
                if position is None:
                    continue
                if self._contents_at(position) is None:
                    self._awaits_plan = True
                    continue
                ratio = window.fill_ratio(cursor) - cursor.blocked
                if best is None or ratio < best[0]:
                    best = (ratio, cursor)
            if best is not None or self._awaits_plan:
                return best
        return None

    def need(self) -> float | None:
        """How needy the stream is (less is needier), or None when it has nothing to fill."""
        if self.queue or self._roomless or self.queue.has_suspect:
            return min((self.window.fill_ratio(each) for each in self.window.cursors.values()), default=1.0)
        if self._measuring is not None or not self.window.may_fill():
            return None
        neediest = self.neediest()
        if neediest is not None:
            return neediest[0]
        return 1.0 if self._awaits_plan else None

    def next_piece(self, worker: int, pieces: int) -> Piece | None:
        """The next piece for `worker`; a batch that is claimed for it is cut into `pieces`."""
        piece = self.queue.take(worker)
        if piece is not None:
            return piece
        if self.window.ring is None and self._measuring is not None:
            return None
        starving = self._starving()
        if starving is not None and self._claim(starving.fill, pieces):
            return self.queue.take(worker)
        while self._roomless:
            # Whoever waits for room goes first: later batches must not take the slots that it waits for.
            batch = min(self._roomless, key=self._turn)
            if batch.cancelled:
                self._roomless.remove(batch)
                continue
            if not self._claim_room(batch):
                return None
            self._roomless.remove(batch)
            self.queue.add(batch.pending)
            piece = self.queue.take(worker)
            if piece is not None:
                return piece
        while not self.queue.is_crowded and self._claim_next(pieces):
            piece = self.queue.take(worker)
            if piece is not None:
                return piece
            # It lay behind, and needs nobody's work; or it is another worker's.
        return None

    def _claim_next(self, pieces: int) -> bool:
        window = self.window
        if self._measuring is not None or not window.may_fill():
            return False
        neediest = self.neediest()
        return neediest is not None and self._claim(neediest[1].fill, pieces)

    def _starving(self) -> Cursor | None:
        """A living cursor whose very next batch is not even claimed, though others wait for room already; only a
        blocked one if one of those is what a call of next() waits for."""
        window = self.window
        if not self._roomless or window.ring is None:
            return None
        pressed = any(window.is_awaited(batch, pressing=True) for batch in self._roomless)
        for cursor in sorted(window.cursors.values(), key=lambda each: not each.blocked):
            if not cursor.waiting and cursor.fill == cursor.next and (cursor.blocked or not pressed):
                position = advance_fill(cursor, window.lengths, 1, window.is_claimed)
                if position == cursor.next and self._contents_at(position) is not None:
                    return cursor
        return None

    def _turn(self, batch: Batch) -> tuple[bool, int]:
        """Orders those that wait for room: what a call of next() waits for, then what comes soonest."""
        return not self.window.is_awaited(batch, pressing=True), self.window.lead(batch.position)

    def _claim(self, position: Position, pieces: int) -> bool:
        window = self.window
        contents = self._contents_at(position)
        if contents is None or not self._make_way(position, contents):
            return False
        if position in window.batches:
            return True
        kept = window.lookback.take(position)
        if kept is not None and kept.plan == contents.plan:
            self._take_back(kept)
            return True
        if kept is not None and kept.grant is not None:
            window.free(kept.grant)
        batch = Batch(position, contents.rows, whole=self.whole_only, keys=contents.keys, plan=contents.plan)
        if contents.error is not None:
            batch.error = contents.error
            window.batches[position] = batch
            return True
        if window.ring is None:
            self._measuring = batch
            pieces = 1
        elif not self._claim_room(batch):
            return False
        window.batches[position] = batch
        batch.pending = cut(batch, pieces)
        self.queue.add(batch.pending)
        return True

    def prove(self) -> None:
        """Batches that were made after another plan, or by a dead daemon, are offered once the plan is known to want
        just these."""
        unproven = [each for each in self.window.batches.values() if not each.proven]
        for batch in sorted(unproven, key=lambda each: each.position):
            contents = self._contents_at(batch.position)
            if contents is None:
                return
            self._make_way(batch.position, contents)

    def _make_way(self, position: Position, contents: Contents) -> bool:
        """Whatever is at `position` is what the plan wants, or is dropped. False while that is still leased."""
        batch = self.window.batches.get(position)
        if batch is None or batch.proven:
            return True
        if batch.plan == contents.plan:
            batch.proven = True
            return True
        if batch.grant is not None and self.window.ring is not None and self.window.ring.leases(batch.grant.slot):
            return False
        self.dropped_for_plan += 1
        if self._measuring is batch and not batch.under_way:
            self._measuring = None
        self.window.drop(batch)
        # One that is under way ends with its last task, as nobody's.
        self.window.remove(batch)
        return True

    def _take_back(self, batch: Batch) -> None:
        """A batch that was yielded before can be offered again, at once or when its digest is found unchanged."""
        self.window.batches[batch.position] = batch
        if batch.written:
            batch.filled = False
            self._digest(batch)

    def _digest(self, batch: Batch) -> None:
        batch.pending = [Piece(batch, 0, 0, digests=True)]
        self.queue.add(batch.pending)

    def _claim_room(self, batch: Batch) -> bool:
        window = self.window
        assert window.ring is not None
        batch.grant = window.ring.claim(batch.span)
        while batch.grant is None and window.make_room(batch):
            batch.grant = window.ring.claim(batch.span)
        if batch.grant is None:
            self.cramped = self.cramped or window.is_awaited(batch)
            self.pressed = self.pressed or window.is_awaited(batch, pressing=True)
            return False
        window.record_claim(batch)
        return True

    def take_need(self) -> tuple[bool, bool]:
        """(cramped, pressed) since the last call."""
        need = (self.cramped, self.pressed)
        self.cramped = self.pressed = False
        return need

    # --- back from the workers ---

    def measured(self, piece: Piece, worker: int, *, by_rows: bool, pieces: int) -> None:
        """The first batch is known; it waits for the ring. A whole one stays with its worker until then."""
        batch = piece.batch
        self.whole_only = not by_rows
        batch.whole = self.whole_only
        batch.under_way -= 1
        if self._ends_cancelled(batch):
            return
        batch.retainer = None if by_rows else worker
        batch.pending = cut(batch, pieces)
        self._roomless.append(batch)

    def ring_opened(self) -> None:
        """The window has a ring: batches can be claimed."""
        self._measuring = None

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
        batch.retainer = None
        self.blame.settled(batch.position)
        if self.window.lookback.wanted:
            self._digest(batch)
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
        batch.retainer = worker
        batch.pending = cut(batch, 1)
        self._roomless.append(batch)

    def failed(self, piece: Piece, error: bytes) -> bool:
        """The batch cannot be made; the trainer gets `error` in its place. True when that is to be told."""
        batch = piece.batch
        batch.under_way -= 1
        if self._measuring is batch:
            self._measuring = None
        first = batch.error is None
        batch.error = error
        batch.pending.clear()
        self.blame.settled(batch.position)
        self._settle_failed(batch)
        return first and not batch.cancelled

    def shard_ended(self, piece: Piece) -> None:
        """There is no such batch; the lengths know by now. Neither are those that have become void with it."""
        window = self.window
        piece.batch.under_way -= 1
        piece.batch.cancelled = True
        self.blame.settled(piece.batch.position)
        if self._measuring is piece.batch:
            self._measuring = None
        self._ends_cancelled(piece.batch)
        for cursor in window.cursors.values():
            settle(cursor, window.lengths)
        for batch in list(window.batches.values()):
            if window.lengths.is_void(batch.position) or window.lengths.is_end(batch.position):
                if self._measuring is batch and not batch.under_way:
                    self._measuring = None
                window.drop(batch)

    def wider_than(self, span: int) -> list[Batch]:
        """The batches that wait for more than `span` slots."""
        return [batch for batch in self._roomless if batch.span > span]

    def refuse_room(self, batch: Batch, error: bytes) -> None:
        """The batch waits for room that there will never be; the trainer gets `error` in its place."""
        self._roomless.remove(batch)
        batch.pending.clear()
        batch.retainer = None
        batch.error = error
        self._settle_failed(batch)

    def lost(self, piece: Piece) -> None:
        """The worker died, for certain: its rows go first."""
        batch = piece.batch
        batch.under_way -= 1
        batch.retainer = None
        if self._measuring is batch:
            self._measuring = None
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
            self.queue.add([piece], first=True)

    def release_retainer(self, worker: int) -> None:
        """`worker` is gone, and what it kept with it: others make it again."""
        for batch in self.window.batches.values():
            if batch.retainer == worker:
                batch.retainer = None

    def _refill_whole(self, batch: Batch) -> None:
        batch.pending = cut(batch, 1)
        self.queue.add(batch.pending, first=True)

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
