"""What a stream fills next: batches are claimed for its neediest cursor and cut into pieces for workers. Pure."""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.daemon.engine.stream.batches import Batch, Contents, Piece, cut
from prefetchd.daemon.engine.stream.piece_queue import PieceQueue
from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import Cursor, advance_fill
from prefetchd.wire.stream_spec import Position


class Claims:
    """Hands out pieces of the batches that the window wants, earliest first.

    `contents_at` tells what a position has, or None: its plan is yet to come. `whole_only` is set once the stream is
    known not to be filled by rows. `needs_recall` is set when a batch that a living cursor awaits found no room, so
    that offers must be recalled; `urgent` when a blocked one awaits it. Pieces wait in `queue`, batches without room in
    `roomless`. No batch is claimed while it `rests`: those that are claimed are made.
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
        self._contents_at = contents_at
        self._awaits_plan = False
        self._measuring: Batch | None = None

    def neediest(self) -> Cursor | None:
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
                if window.comes_back(position) and (waiting or position != cursor.next):
                    continue
                ratio = window.fill_ratio(cursor) - cursor.blocked
                if best is None or ratio < best[0]:
                    best = (ratio, cursor)
            if best is not None or self._awaits_plan:
                return best[1] if best is not None else None
        return None

    def has_work(self) -> bool:
        """True when the stream has something to fill, or will have once its plan is known."""
        if self.queue or self.roomless or self.queue.has_suspect:
            return True
        if self.rests or self._measuring is not None or not self.window.may_fill():
            return False
        return self.neediest() is not None or self._awaits_plan

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
        while self.roomless:
            # Whoever waits for room goes first: later batches must not take the slots that it waits for.
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
        while not self.queue.is_crowded and self._claim_next(pieces):
            piece = self.queue.take(worker)
            if piece is not None:
                return piece
            # It lay behind, and needs nobody's work; or it is another worker's.
        return None

    def _claim_next(self, pieces: int) -> bool:
        window = self.window
        if self.rests or self._measuring is not None or not window.may_fill():
            return False
        neediest = self.neediest()
        return neediest is not None and self._claim(neediest.fill, pieces)

    def _starving(self) -> Cursor | None:
        """A living cursor whose very next batch is not even claimed, though others wait for room already; only a
        blocked one if one of those is what a call of next() waits for. Where no cursor lives, one that comes to a
        batch which is not claimed before it comes to any of those: it may have given way to an earlier one."""
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
        """Orders those that wait for room: what a call of next() waits for, then what comes soonest."""
        return not self.window.is_awaited(batch, urgent=True), self.window.turn(batch.position)

    def _claim(self, position: Position, pieces: int) -> bool:
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
        unverified = [each for each in self.window.batches.values() if not each.plan_verified]
        for batch in sorted(unverified, key=lambda each: each.position):
            contents = self._contents_at(batch.position)
            if contents is None:
                return
            self._make_way(batch.position, contents)

    def _make_way(self, position: Position, contents: Contents) -> None:
        """Whatever is at `position` is what the plan wants, or it is dropped."""
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
        """A batch that was yielded before can be offered again, at once or when its digest is found unchanged."""
        self.window.batches[batch.position] = batch
        if batch.written:
            batch.filled = False
            self.queue.add_digest(batch)

    def _claim_room(self, batch: Batch) -> bool:
        window = self.window
        assert window.ring is not None
        if batch.span > 1 and window.ring.reserved < min(2 * batch.span, window.wanted_slots):
            # The ring is about to grow for it: others need not make room.
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
        """(needs_recall, urgent) since the last call."""
        need = (self.needs_recall, self.urgent)
        self.needs_recall = self.urgent = False
        return need

    def ring_opened(self) -> None:
        """The window has a ring: batches can be claimed."""
        self._measuring = None

    def forget_measuring(self, batch: Batch) -> bool:
        """The batch is not measured any more; True when it was."""
        if self._measuring is not batch:
            return False
        self._measuring = None
        return True

    @property
    def widest(self) -> int:
        """Slots that the largest of those needs that wait for room."""
        return max((batch.span for batch in self.roomless), default=0)

    def wider_than(self, span: int) -> list[Batch]:
        """The batches that wait for more than `span` slots."""
        return [batch for batch in self.roomless if batch.span > span]
