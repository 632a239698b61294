"""Claims decide what one stream fills next: a batch is claimed for the neediest cursor and cut into pieces for workers.
Pure. The rules, whose reasons are in decisions 0009 (measuring), 0010 (gaps), 0011 (blocked cursors), 0020 (lookback),
0021 (plans), 0091 (growing rings), 0094 (rest) and 0111 (full disks):

1. The neediest cursor is the living one with the fewest batches ahead, relative to the low watermark; a blocked one
   comes first. A waiting cursor has its turn when no living one may have more, and none awaits its plan: else the
   planner would go on to another epoch before the living one's.
2. Where all epochs are equal, a batch that somebody holds is not made again before a living cursor awaits it.
3. Workers get, in this order (`next_piece`):
   a. pieces that are queued and that this worker may do;
   b. a batch for a starving cursor, if others wait for room already (`_starving`);
   c. batches that wait for room: what a next() waits for, then what comes soonest. Later ones do not take the slots
      that these wait for;
   d. a new batch for the neediest cursor, while the window may fill and not too many pieces wait for their own workers.
4. A starving cursor is a living one whose very next batch is not claimed; only a blocked one, if a next() waits for one
   of the batches without room. Where no cursor lives, it is one that comes to an unclaimed batch before any of those
   without room: that batch may have given way to an earlier one, and the gap must be filled first.
5. The stream's first batch is measured as one piece. No other batch is claimed before there is a ring.
6. A batch at a position is, in this order (`_claim`): the one that is there, if it was made after the plan that holds
   (else it is dropped); one that is kept behind and was made after that plan; the error that the sampler raised; or a
   new one.
7. A new batch takes a slot when it is claimed, or is not claimed. The first one, and one that turns out to take more
   slots, wait for them (`roomless`). The window makes room for each; but for one of several slots only when the ring is
   not about to grow for it. When there is no room for one that a living cursor awaits, offers are to be recalled
   (`needs_recall`), urgently when a blocked one awaits it.
8. While the stream `rests` no batch is claimed; those that are claimed are made.
9. Files may find no room on their disk though the ring has slots. Then another batch gives way as for a slot (rule 3 of
   Window), and as long as one finds no room none is claimed that comes later: it would take the place that was made.
10. Another machine gets the first batch at some distance that nobody has claimed (`claim_ahead`): what comes before is
   made here. It takes a slot only when there are others for what comes before, and nothing gives way for it (decision
   0120).
11. Once `halted` no piece is handed out: the trainers are about to leave the stream, as its samples depend on the
    process that makes them (decision 0132).
"""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.daemon.engine.stream.batches import Batch, Contents, Piece, cut
from prefetchd.daemon.engine.stream.piece_queue import PieceQueue
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import Cursor, advance_fill
from prefetchd.wire.stream_spec import Position


class Claims:
    """Hands out pieces of the batches that the window wants, earliest first.

    `contents_at` returns what a position has, or None while its plan is yet to come. `whole_only` is set once the
    stream is known not to be filled by rows. `needs_recall` and `urgent` are those of rule 7. Pieces wait in `queue`,
    batches without room in `roomless`. `rests` is rule 8.
    """

    def __init__(self, window: Window, contents_at: Callable[[Position], Contents | None], queue: PieceQueue) -> None:
        self.window = window
        self.queue = queue
        self.whole_only = False
        self.roomless: list[Batch] = []
        self.dropped_for_plan = 0
        self.needs_recall = False
        self.urgent = False
        self.rests = False
        self.halted = False
        self._unstored: list[Batch] = []
        self._contents_at = contents_at
        self._awaits_plan = False
        self._measuring: Batch | None = None

    def neediest(self) -> Cursor | None:
        """Returns the cursor to fill for (rules 1 and 2); None when none may have more, or the plan is yet to come."""
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
                if window.comes_back(position) and (waiting or position != cursor.next):
                    continue
                # Being blocked counts as much as having all of the low watermark less.
                ratio = window.fill_ratio(cursor) - cursor.blocked
                if best is None or ratio < best[0]:
                    best = (ratio, cursor)
            if best is not None or self._awaits_plan:
                return best[1] if best is not None else None
        return None

    def has_work(self) -> bool:
        """True when the stream has something to fill, or will have once its plan is known."""
        if self.halted:
            return False
        if self.queue or self.roomless or self.queue.has_suspect:
            return True
        return not self.rests and self.has_more()

    def has_more(self) -> bool:
        """True when there is a batch to claim, or will be once its plan is known; whether or not the stream rests."""
        if self._measuring is not None or not self.window.may_fill():
            return False
        neediest = self.neediest()
        return self._awaits_plan if neediest is None else not self._comes_after_the_unstored(neediest.fill)

    def next_piece(self, worker: int, pieces_at: Callable[[Position], int]) -> Piece | None:
        """Returns the next piece for `worker` (rule 3); `pieces_at` says into how many a batch that is claimed for it
        is cut. None when there is nothing for this worker."""
        if self.halted:
            return None
        piece = self.queue.take(worker)
        if piece is not None:
            return piece
        if self.window.ring is None and self._measuring is not None:
            return None
        starving = self._starving()
        if starving is not None and self._claim(starving.fill, pieces_at):
            return self.queue.take(worker)
        while self.roomless:
            # Rule 3c.
            batch = min(self.roomless, key=self._turn)
            if batch.cancelled:
                self.roomless.remove(batch)
                continue
            if not self._claim_room(batch):
                return None
            self.roomless.remove(batch)
            self.queue.add(batch.pending)
            piece = self.queue.take(worker)
            if piece is not None:
                return piece
        while not self.queue.is_crowded and self._claim_next(pieces_at):
            piece = self.queue.take(worker)
            if piece is not None:
                return piece
            # The batch was kept behind and needs no worker, or it is another worker's.
        return None

    def _claim_next(self, pieces_at: Callable[[Position], int]) -> bool:
        window = self.window
        if self.rests or self._measuring is not None or not window.may_fill():
            return False
        neediest = self.neediest()
        if neediest is None or self._comes_after_the_unstored(neediest.fill):
            return False
        return self._claim(neediest.fill, pieces_at)

    def finds_no_room(self, batch: Batch) -> None:
        """Makes room for a batch that is made, and for whose file there is none on the disk (rule 9)."""
        if batch.cancelled or batch.error is not None:
            return
        if batch not in self._unstored:
            self._unstored.append(batch)
        self.window.make_room(batch)

    def claim_ahead(self, lead: int, *, or_last: bool = False) -> Piece | None:
        """Claims the first unclaimed batch before which at least `lead` others come for the neediest cursor, as one
        piece that is under way (rule 10); with `or_last`, where there is none, the last one that it may have. None when
        there is none of these, or no slot to spare."""
        window = self.window
        ring = window.ring
        if ring is None or self.rests or self.roomless or self._unstored or not window.may_fill():
            return None
        cursor = self.neediest()
        if cursor is None:
            return None
        found = self._unclaimed_ahead(cursor, lead, or_last=or_last)
        if found is None:
            return None
        position, gaps = found
        contents = self._contents_at(position)
        if contents is None or contents.error is not None or position in window.lookback:
            return None
        if ring.claimable <= gaps * ring.mean_span or self.queue.is_about(position):
            return None
        batch = Batch(position, contents.rows, whole=self.whole_only, keys=contents.keys, plan=contents.plan)
        batch.grant = ring.claim(1)
        if batch.grant is None:
            return None
        window.record_claim(batch)
        window.batches[position] = batch
        batch.under_way = 1
        return cut(batch, 1)[0]

    def _unclaimed_ahead(self, cursor: Cursor, lead: int, *, or_last: bool) -> tuple[Position, int] | None:
        """Returns the first unclaimed position before which at least `lead` batches come for the cursor, and how many
        of these are unclaimed. Where the cursor may not have as many ahead, or its epoch ends before, with `or_last`
        the last unclaimed position that is not the first one; else None."""
        window, lengths = self.window, self.window.lengths
        position, gaps = cursor.fill, 0
        last: tuple[Position, int] | None = None
        while cursor.walks(position) and not lengths.is_end(position):
            if lengths.distance(cursor.next, position) >= window.limit(cursor):
                break
            is_free = position not in window.batches
            if is_free and lengths.distance(cursor.next, position) >= lead:
                return position, gaps
            if is_free and position != cursor.next:
                last = position, gaps
            gaps += is_free
            position = lengths.skip_voids(lengths.after(position))
        return last if or_last else None

    def _comes_after_the_unstored(self, position: Position) -> bool:
        if self._unstored:
            self._unstored = [each for each in self._unstored if each.pending or each.under_way]
        return any(self.window.turn(each.position) < self.window.turn(position) for each in self._unstored)

    def _starving(self) -> Cursor | None:
        """Returns the starving cursor (rule 4), if there is one."""
        window = self.window
        if not self.roomless or window.ring is None or self.rests:
            return None
        urgent = any(window.is_awaited(batch, urgent=True) for batch in self.roomless)
        lives = any(not each.waiting for each in window.cursors.values())
        for cursor in sorted(window.cursors.values(), key=lambda each: not each.blocked):
            if cursor.waiting:
                if not lives and self._comes_before_the_roomless(cursor):
                    return cursor
            elif cursor.fill == cursor.next and (cursor.blocked or not urgent):
                position = advance_fill(cursor, window.lengths, 1, window.is_claimed)
                if position == cursor.next and self._contents_at(position) is not None:
                    return cursor
        return None

    def _comes_before_the_roomless(self, cursor: Cursor) -> bool:
        window = self.window
        position = advance_fill(cursor, window.lengths, window.limit(cursor), window.is_claimed)
        if position is None or self._contents_at(position) is None:
            return False
        return all(window.turn(position) < window.turn(each.position) for each in self.roomless if not each.cancelled)

    def _turn(self, batch: Batch) -> tuple[bool, tuple[int, Position]]:
        """Orders batches that wait for room: what a call of next() waits for, then what comes soonest."""
        return not self.window.is_awaited(batch, urgent=True), self.window.turn(batch.position)

    def _claim(self, position: Position, pieces_at: Callable[[Position], int]) -> bool:
        window = self.window
        contents = self._contents_at(position)
        if contents is None:
            return False
        self._make_way(position, contents)
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
        # Rule 7: without room it is not claimed, and its cursor asks for it again.
        elif not self._claim_room(batch):
            return False
        window.batches[position] = batch
        batch.pending = cut(batch, 1 if batch is self._measuring else pieces_at(position))
        self.queue.add(batch.pending)
        return True

    def prove(self) -> None:
        """Verifies batches that were made after another plan, or by a dead daemon: they are offered once the plan is
        known to want just these. Of those that no cursor comes to, no plan is asked for."""
        unverified = [each for each in self.window.batches.values() if not each.plan_verified]
        unverified = [each for each in unverified if self.window.is_ahead(each.position)]
        for batch in sorted(unverified, key=lambda each: each.position):
            contents = self._contents_at(batch.position)
            if contents is None:
                return
            self._make_way(batch.position, contents)

    def _make_way(self, position: Position, contents: Contents) -> None:
        """Drops the batch at `position` unless it is what the plan wants there (rule 6)."""
        batch = self.window.batches.get(position)
        if batch is None or batch.plan_verified:
            return
        if batch.plan == contents.plan:
            batch.plan_verified = True
            return
        self.dropped_for_plan += 1
        if not batch.under_way:
            self.forget_measuring(batch)
        self.window.void(batch)

    def _take_back(self, batch: Batch) -> None:
        """Puts a batch that was yielded before back into the window: it is offered again at once, or when its digest is
        found unchanged."""
        self.window.batches[batch.position] = batch
        if batch.written:
            batch.filled = False
            self.queue.add_digest(batch)

    def _claim_room(self, batch: Batch) -> bool:
        window = self.window
        assert window.ring is not None
        if batch.span > 1 and window.ring.reserved < min(2 * batch.span, window.wanted_slots):
            # Rule 7: others need not make room.
            return False
        batch.grant = window.ring.claim(batch.span)
        while batch.grant is None and window.make_room(batch):
            batch.grant = window.ring.claim(batch.span)
        if batch.grant is None:
            self.needs_recall = self.needs_recall or window.is_awaited(batch)
            self.urgent = self.urgent or window.is_awaited(batch, urgent=True)
            return False
        window.record_claim(batch)
        return True

    def take_need(self) -> tuple[bool, bool]:
        """Returns (needs_recall, urgent) since the last call."""
        need = (self.needs_recall, self.urgent)
        self.needs_recall = self.urgent = False
        return need

    def ring_opened(self) -> None:
        """Lets batches be claimed: the window has a ring now."""
        self._measuring = None

    def forget_measuring(self, batch: Batch) -> bool:
        """Ends the measuring of the batch; True when it was the one being measured."""
        if self._measuring is not batch:
            return False
        self._measuring = None
        return True

    @property
    def widest(self) -> int:
        """The slots that the largest of the batches without room needs; 0 when none waits."""
        return max((batch.span for batch in self.roomless), default=0)

    def wider_than(self, span: int) -> list[Batch]:
        """Returns the batches that wait for more than `span` slots."""
        return [batch for batch in self.roomless if batch.span > span]
