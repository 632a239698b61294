"""The rules of filling, one by one."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.ring.policy import SlotState
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import COMPARE, FILL_ROWS
from prefetchd.wire.segment_layout import SLOT_READY
from tests.unit.daemon.engine.stream.rooms import SPEC, into, stream_of, walks, works

WORKER, OTHER = 7, 8
LOOKS_BACK = dataclasses.replace(SPEC, lookback=2)
SHARDED = dataclasses.replace(SPEC, order="iterable", length=-1, logical_shards=2)
ERROR = b"it raised"


def filling(slots: int = 4, spec=SPEC) -> StreamState:
    """A stream whose trainer begins an epoch."""
    stream = stream_of(slots, spec=spec)
    walks(stream.window)
    return stream


def hands_out(stream: StreamState, pieces: int = 2) -> list[Piece]:
    """All pieces of the next batch, each under way in WORKER."""
    found = [stream.claims.next_piece(WORKER, into(pieces))]
    while found[-1].batch.pending:
        found.append(stream.claims.next_piece(WORKER, into(pieces)))
    return found


def sharded(stream: StreamState, batches: int) -> list[Piece]:
    """The next batches, which WORKER makes, whatever their shard."""
    works(stream, WORKER)
    stream.shard_affinity.want(1)
    pieces = [stream.claims.next_piece(WORKER, into(1)) for _ in range(batches)]
    assert [each.batch.position[1] for each in pieces] == list(range(batches))
    return pieces


def state(stream: StreamState, batch: Batch) -> SlotState:
    return stream.window.ring.state(batch.grant.slot)


def test_rule_1_a_batch_is_ready_when_all_its_pieces_are_in():
    stream = filling()
    first, second = hands_out(stream)
    batch = first.batch
    assert not stream.filling.filled(second, 90)
    assert not batch.filled
    assert stream.filling.filled(first, 90)
    assert (batch.filled, batch.payload_bytes, state(stream, batch)) == (True, 90, SlotState.READY)


def test_rule_1_while_the_window_looks_back_its_digest_is_taken_before():
    stream = filling(spec=LOOKS_BACK)
    (piece,) = hands_out(stream, 1)
    assert not stream.filling.filled(piece, 90)
    digests = stream.claims.next_piece(OTHER, into(1))
    assert (digests.digests, digests.batch) == (True, piece.batch)
    assert stream.filling.digested(digests, 5)
    assert (piece.batch.filled, piece.batch.digest) == (True, 5)


def test_rule_2_the_record_says_ready_before_anything_else_does():
    stream = filling()
    (piece,) = hands_out(stream, 1)
    found = []
    stream.window._write = lambda slot, record: found.append((record.state, state(stream, piece.batch)))
    stream.filling.filled(piece, 90)
    assert found == [(SLOT_READY, SlotState.FILLING)]


@pytest.mark.parametrize("ends", ["filled", "lost", "deviates"])
def test_rule_3_a_batch_that_is_cancelled_keeps_its_slots_until_its_last_task_has_ended(ends):
    stream = filling()
    first, second = hands_out(stream)
    grant = first.batch.grant
    assert not stream.window.drop(first.batch)
    stream.filling.filled(first, 90)
    assert stream.window.ring.state(grant.slot) is SlotState.FILLING, "another one may write to them"
    getattr(stream.filling, ends)(second, *([90] if ends == "filled" else []))
    assert stream.window.ring.state(grant.slot) is SlotState.FREE
    assert stream.window.batches == {}


@pytest.mark.parametrize("ends", ["filled", "lost", "deviates"])
def test_rule_3_so_does_one_that_has_failed(ends):
    stream = filling()
    first, second = hands_out(stream)
    grant = first.batch.grant
    stream.filling.failed(first, ERROR)
    assert stream.window.ring.state(grant.slot) is SlotState.FILLING
    getattr(stream.filling, ends)(second, *([90] if ends == "filled" else []))
    assert stream.window.ring.state(grant.slot) is SlotState.FREE
    assert stream.window.batches == {(0, 0): first.batch}, "its error is in its place"


def test_rule_4_who_has_measured_keeps_what_it_has_made_of_the_batch():
    stream = filling(slots=0)
    (piece,) = hands_out(stream)
    stream.filling.measured(piece, WORKER, by_rows=True, pieces=2)
    assert [each.keeper for each in piece.batch.pending] == [WORKER, None], "one sample, which is of the first rows"
    assert stream.claims.roomless == [piece.batch]
    assert (piece.batch.whole, piece.batch.under_way) == (False, 0)


def test_rule_4_what_is_not_filled_by_rows_is_one_piece_from_then_on():
    stream = filling(slots=0)
    (piece,) = hands_out(stream)
    stream.filling.measured(piece, WORKER, by_rows=False, pieces=2)
    assert [(each.rows, each.keeper) for each in piece.batch.pending] == [(4, WORKER)]
    assert piece.batch.whole
    assert stream.claims.whole_only


def test_rule_4_what_nobody_wants_any_more_waits_for_no_room():
    stream = filling(slots=0)
    (piece,) = hands_out(stream)
    stream.window.drop(piece.batch)
    stream.filling.measured(piece, WORKER, by_rows=True, pieces=2)
    assert (stream.claims.roomless, stream.window.batches) == ([], {})
    stream = filling()
    (piece,) = hands_out(stream, 1)
    stream.window.drop(piece.batch)
    stream.filling.too_large(piece, 3, WORKER)
    assert (stream.claims.roomless, stream.window.batches) == ([], {})


def test_rule_4_who_has_made_a_larger_batch_keeps_it_and_gives_its_slots_up():
    stream = filling()
    (piece,) = hands_out(stream, 1)
    grant = piece.batch.grant
    stream.filling.too_large(piece, 3, WORKER)
    assert stream.window.ring.state(grant.slot) is SlotState.FREE
    assert (piece.batch.whole, piece.batch.under_way) == (True, 0)
    stream.window.wanted_slots = 4
    assert stream.claims.next_piece(OTHER, into(1)).batch is not piece.batch, "it is the other one's"
    again = stream.claims.next_piece(WORKER, into(1))
    assert (again.batch, again.batch.grant.span, again.rows) == (piece.batch, 3, 4)


def test_rule_4_when_it_dies_others_make_it_again():
    stream = filling()
    (piece,) = hands_out(stream, 1)
    stream.filling.too_large(piece, 3, WORKER)
    stream.filling.forget_keeper(OTHER)
    assert [each.keeper for each in piece.batch.pending] == [WORKER]
    stream.filling.forget_keeper(WORKER)
    assert [each.keeper for each in piece.batch.pending] == [None]


def test_rule_5_a_batch_with_a_row_that_does_not_fit_is_filled_again_as_one_task():
    stream = filling()
    first, second = hands_out(stream)
    stream.filling.deviates(first)
    assert first.batch.pending == [], "not while another one writes to it"
    assert not stream.filling.filled(second, 90)
    again = stream.claims.next_piece(OTHER, into(2))
    assert (again.batch, again.first, again.end) == (first.batch, 0, 4)
    assert stream.filling.filled(again, 120)


def test_rule_5_no_more_of_it_is_handed_out_meanwhile():
    stream = filling()
    first, second = (stream.claims.next_piece(WORKER, into(3)) for _ in range(2))
    stream.filling.deviates(first)
    assert stream.claims.next_piece(WORKER, into(3)).batch is not second.batch


def test_rule_5_at_once_when_no_other_piece_is_under_way():
    stream = filling()
    first = stream.claims.next_piece(WORKER, into(2))
    assert len(first.batch.pending) == 1
    stream.filling.deviates(first)
    again = stream.claims.next_piece(OTHER, into(2))
    assert (again.batch, again.first, again.end) == (first.batch, 0, 4)
    assert first.batch.pending == [], "rows that nobody was given are in it"


def test_rule_5_also_when_the_last_of_its_other_pieces_is_lost():
    stream = filling()
    first, second = hands_out(stream)
    stream.filling.deviates(first)
    stream.filling.lost(second)
    again = stream.claims.next_piece(OTHER, into(2))
    assert (again.batch, again.rows) == (first.batch, 4)


def test_rule_6_a_piece_that_was_lost_goes_to_workers_again_before_all_others():
    stream = filling()
    first, second = hands_out(stream)
    third = stream.claims.next_piece(WORKER, into(2))
    second.keeper = WORKER
    stream.filling.lost(second)
    assert stream.claims.next_piece(OTHER, into(2)) is second, "its keeper is gone, too"
    assert stream.claims.next_piece(OTHER, into(2)).batch is third.batch
    assert first.batch.under_way == 2


def test_rule_6_a_batch_that_was_being_measured_is_claimed_anew():
    stream = filling(slots=0)
    (piece,) = hands_out(stream)
    stream.filling.lost(piece)
    assert stream.window.batches == {}
    (again,) = hands_out(stream)
    assert again.batch is not piece.batch
    assert again.batch.position == piece.batch.position


@pytest.mark.parametrize(("digest", "is_there"), [(5, True), (6, False)])
def test_rule_7_a_batch_that_was_offered_is_ready_again_if_nobody_has_written_to_it(digest, is_there):
    stream = filling(spec=LOOKS_BACK)
    (piece,) = hands_out(stream, 1)
    stream.filling.filled(piece, 90)
    stream.filling.digested(stream.claims.next_piece(WORKER, into(1)), 5)
    batch = piece.batch
    assert batch.under_way == 0
    batch.filled, batch.written = False, True
    stream.claims.queue.add_digest(batch)
    again = stream.claims.next_piece(WORKER, into(1))
    grant = batch.grant
    assert not stream.filling.digested(again, digest), "it counts once"
    assert ((0, 0) in stream.window.batches) == batch.filled == is_there
    assert batch.written != is_there
    assert (stream.window.ring.state(grant.slot) is SlotState.READY) == is_there


def test_rule_7_nobody_counts_the_digest_of_a_batch_that_nobody_wants():
    stream = filling(spec=LOOKS_BACK)
    (piece,) = hands_out(stream, 1)
    stream.filling.filled(piece, 90)
    digests = stream.claims.next_piece(WORKER, into(1))
    stream.window.drop(piece.batch)
    assert not stream.filling.digested(digests, 5)
    assert not piece.batch.filled


def test_rule_8_that_a_batch_has_failed_is_news_once():
    stream = filling()
    first, second = hands_out(stream)
    assert stream.filling.failed(first, ERROR)
    assert not stream.filling.failed(second, b"another")
    assert first.batch.done


def test_rule_8_a_batch_that_fails_is_made_no_further():
    stream = filling()
    first = stream.claims.next_piece(WORKER, into(2))
    stream.filling.failed(first, ERROR)
    assert first.batch.pending == []
    assert stream.claims.next_piece(WORKER, into(2)).batch is not first.batch


def test_rule_8_when_the_first_one_fails_another_is_measured():
    stream = filling(slots=0)
    (piece,) = hands_out(stream)
    stream.filling.failed(piece, ERROR)
    (cursor,) = stream.window.cursors.values()
    cursor.next = cursor.offered = (0, 1)
    (another,) = hands_out(stream)
    assert another.batch.position == (0, 1)


def test_rule_8_it_is_no_news_of_a_batch_that_nobody_wants():
    stream = filling()
    (piece,) = hands_out(stream, 1)
    stream.window.drop(piece.batch)
    assert not stream.filling.failed(piece, ERROR)
    assert stream.window.batches == {}


@pytest.mark.parametrize("settles", ["filled", "failed", "shard_ended"])
def test_deaths_on_a_batch_are_forgotten_once_it_is_settled(settles):
    stream = filling(spec=SHARDED if settles == "shard_ended" else SPEC)
    (piece,) = sharded(stream, 1) if settles == "shard_ended" else hands_out(stream, 1)
    forgotten = []
    stream.blame.forget = forgotten.append
    getattr(stream.filling, settles)(piece, {"filled": 90, "failed": ERROR, "shard_ended": 0}[settles])
    assert forgotten == [(0, 0)]


def test_what_finds_no_room_for_ever_has_an_error_in_its_place():
    stream = filling()
    (piece,) = hands_out(stream, 1)
    stream.filling.too_large(piece, 9, WORKER)
    stream.filling.refuse_room(piece.batch, ERROR)
    assert stream.claims.roomless == []
    assert (piece.batch.error, piece.batch.pending) == (ERROR, [])
    piece.batch.cancelled = True
    stream.claims.roomless.append(piece.batch)
    stream.filling.refuse_room(piece.batch, ERROR)
    assert stream.window.batches == {}, "nobody wants to know"


# --- shards ---


@pytest.mark.parametrize(("step", "batches", "can_be"), [(4, 0, True), (4, 2, True), (4, 3, False), (5, -1, False)])
def test_a_shard_cannot_have_ended_before_its_batch_if_it_has_more(step, batches, can_be):
    piece = Piece(Batch((0, step), 4), 0, 4)
    check = filling(spec=SHARDED).filling.check_shard_end
    if can_be:
        check(piece, batches)
    else:
        with pytest.raises(ProtocolError):
            check(piece, batches)


def test_a_stream_without_shards_has_none_that_end():
    with pytest.raises(ProtocolError):
        filling().filling.check_shard_end(Piece(Batch((0, 4), 4), 0, 4), 0)


def test_the_batches_of_a_shard_that_has_ended_are_dropped():
    stream = filling(8, spec=SHARDED)
    pieces = sharded(stream, 5)
    stream.filling.lost(pieces[3])
    stream.filling.shard_ended(pieces[1], 0)
    assert stream.window.lengths.is_void((0, 1))
    assert not stream.window.lengths.is_void((0, 2)), "the other shard's"
    assert set(stream.window.batches) == {(0, 0), (0, 2), (0, 4)}
    assert stream.window.ring.count(SlotState.FREE) == 5
    assert stream.claims.next_piece(WORKER, into(1)).batch.position == (0, 6), (
        "the lost one is no more, nor is the fifth"
    )


def test_one_of_them_that_is_under_way_ends_with_its_task():
    stream = filling(8, spec=SHARDED)
    pieces = sharded(stream, 4)
    stream.filling.shard_ended(pieces[1], 0)
    assert set(stream.window.batches) == {(0, 0), (0, 2), (0, 3)}
    stream.filling.shard_ended(pieces[3], 0)
    assert set(stream.window.batches) == {(0, 0), (0, 2)}


def test_a_cursor_that_stands_at_such_a_batch_goes_on_to_the_next_one():
    stream = filling(8, spec=SHARDED)
    (cursor,) = stream.window.cursors.values()
    pieces = sharded(stream, 2)
    cursor.next = cursor.offered = (0, 1)
    stream.filling.shard_ended(pieces[1], 0)
    assert cursor.next == cursor.offered == (0, 2)


def test_when_all_shards_have_ended_so_has_the_epoch():
    stream = filling(8, spec=SHARDED)
    pieces = sharded(stream, 4)
    stream.filling.lost(pieces[3])
    stream.filling.shard_ended(pieces[1], 0)
    stream.filling.shard_ended(pieces[2], 1)
    assert stream.window.lengths.is_end((0, 1))
    assert set(stream.window.batches) == {(0, 0)}


def test_a_first_batch_that_does_not_exist_is_measured_no_longer():
    stream = filling(0, spec=SHARDED)
    (piece,) = sharded(stream, 1)
    stream.filling.shard_ended(piece, 0)
    another = stream.claims.next_piece(WORKER, into(1))
    assert another.batch.position == (0, 1)


def elsewhere(stream: StreamState) -> Piece:
    """A batch that another machine has made, and that is to be compared: the task of that."""
    piece = stream.claims.claim_ahead(1)
    stream.filling.made_elsewhere(piece, 90, "a node", (0, piece.rows))
    assert not piece.batch.filled
    return stream.claims.next_piece(WORKER, into(2))


def test_rule_9_what_another_machine_has_made_is_ready_when_it_is_equal():
    stream = filling()
    compares = elsewhere(stream)
    assert (compares.kind, compares.node, compares.rows) == (COMPARE, "a node", compares.batch.rows)
    assert stream.filling.filled(compares, compares.batch.payload_bytes)
    assert (compares.batch.filled, compares.batch.payload_bytes) == (True, 90)


def test_rule_9_what_differs_is_made_anew_before_all_else():
    stream = filling()
    compares = elsewhere(stream)
    stream.filling.differs(compares, 2)
    again = [stream.claims.next_piece(WORKER, into(2)) for _ in range(2)]
    assert [(piece.batch, piece.node, piece.kind) for piece in again] == [(compares.batch, "", FILL_ROWS)] * 2
    assert sum(piece.rows for piece in again) == compares.batch.rows


def test_rule_9_nothing_is_compared_of_a_batch_that_nobody_wants():
    stream = filling()
    piece = stream.claims.claim_ahead(1)
    stream.window.drop(piece.batch)
    stream.filling.made_elsewhere(piece, 90, "a node", (0, piece.rows))
    assert piece.batch.position not in stream.window.batches
    assert stream.window.ring.claimable == 4
