"""In which order pieces are handed out, and what waits apart."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.blame import SUSPECTED_AFTER, Blame
from prefetchd.daemon.engine.stream.piece_queue import PieceQueue
from prefetchd.wire.worker_status import LOADING, WorkerStatus

WORKER, ANOTHER = 7, 8


def batch_of(step: int, *rows: tuple[int, int]) -> Batch:
    """A batch with a grant of its own, whose pieces have these rows."""
    batch = Batch((0, step), rows[-1][1], grant=object())  # type: ignore[arg-type]
    batch.pending = [Piece(batch, first, end) for first, end in rows]
    return batch


def suspected(blame: Blame, position: tuple[int, int], row: int) -> None:
    for _ in range(SUSPECTED_AFTER):
        blame.died(position, WorkerStatus(1, LOADING, row, 100), alone=False)


def test_pieces_are_taken_in_their_order_and_first_ones_before_all():
    queue = PieceQueue(Blame(), None)
    early, late = batch_of(0, (0, 4)), batch_of(1, (0, 2), (2, 4))
    queue.add(late.pending)
    queue.add(early.pending, first=True)
    taken = [queue.take(WORKER) for _ in range(3)]
    assert [(piece.batch, piece.first) for piece in taken] == [(early, 0), (late, 0), (late, 2)]
    assert queue.take(WORKER) is None
    assert (late.under_way, late.pending) == (2, [])


def test_a_digest_is_taken_before_what_waits_for_later_batches():
    queue = PieceQueue(Blame(), None)
    filled, later = batch_of(0, (0, 4)), batch_of(1, (0, 2), (2, 4))
    filled.pending = []
    queue.add(later.pending)
    queue.add_digest(filled)
    taken = queue.take(WORKER)
    assert taken is not None
    assert taken.digests
    assert taken.batch is filled


def test_of_those_that_go_first_the_earliest_goes_first():
    """Found as batches that had to be made once more, all at once: the one that was waited for came last."""
    queue = PieceQueue(Blame(), None)
    queue.add(batch_of(9, (0, 4)).pending)
    for step in (2, 1, 3):
        queue.add(batch_of(step, (0, 2), (2, 4)).pending, first=True)
    taken = [queue.take(WORKER) for _ in range(7)]
    assert [(each.batch.position[1], each.first) for each in taken if each is not None] == [
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 2),
        (3, 0),
        (3, 2),
        (9, 0),
    ]
    assert not queue


def test_a_piece_whose_batch_was_dropped_is_passed_over():
    queue = PieceQueue(Blame(), None)
    dropped, other = batch_of(0, (0, 4)), batch_of(1, (0, 4))
    queue.add(dropped.pending)
    queue.add(other.pending)
    dropped.pending.clear()
    assert queue.take(WORKER).batch is other


def test_what_a_worker_keeps_of_a_batch_is_for_that_worker():
    queue = PieceQueue(Blame(), None)
    kept, other = batch_of(0, (0, 4)), batch_of(1, (0, 4))
    kept.pending[0].keeper = WORKER
    queue.add(kept.pending)
    queue.add(other.pending)
    assert queue.expecting() == {WORKER}
    assert queue.take(ANOTHER).batch is other
    assert queue.take(ANOTHER) is None
    assert queue.take(WORKER).batch is kept


def test_a_row_on_which_workers_die_waits_apart_and_the_others_do_not():
    blame = Blame()
    queue = PieceQueue(blame, None)
    suspected(blame, (0, 0), row=1)
    batch = batch_of(0, (0, 4))
    queue.add(batch.pending)
    taken = [queue.take(WORKER), queue.take(WORKER)]
    assert [(piece.first, piece.end) for piece in taken] == [(0, 1), (2, 4)]
    assert queue.take(WORKER) is None
    assert queue.has_suspect
    suspect = queue.next_suspect()
    assert (suspect.first, suspect.end) == (1, 2)
    assert not queue.has_suspect


def test_who_asks_for_suspects_changes_nothing():
    blame = Blame()
    queue = PieceQueue(blame, None)
    for step in (0, 1):
        suspected(blame, (0, step), row=0)
    dropped, other = batch_of(0, (0, 1)), batch_of(1, (0, 1))
    queue.add(dropped.pending)
    queue.add(other.pending)
    kept = list(dropped.pending)
    dropped.pending.clear()
    assert queue.has_suspect
    dropped.pending += kept
    assert queue.next_suspect().batch is dropped, "it was not forgotten by asking"
    assert queue.next_suspect().batch is other
