"""The rules of claims, one by one."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch, Contents
from prefetchd.daemon.engine.stream.blame import Blame
from prefetchd.daemon.engine.stream.claims import Claims
from prefetchd.daemon.engine.stream.piece_queue import PieceQueue
from prefetchd.daemon.engine.stream.window import Window
from tests.unit.daemon.engine.stream.rooms import into, ready, walks, window_of

ROWS = 4
WORKER = 7


def claims_of(window: Window, contents_at=lambda position: Contents(ROWS)) -> Claims:
    return Claims(window, contents_at, PieceQueue(Blame(), None))


def claimed(claims: Claims, pieces: int = 1) -> tuple[int, int] | None:
    """The position of the next piece's batch."""
    piece = claims.next_piece(WORKER, into(pieces))
    return piece.batch.position if piece is not None else None


def test_rule_1_the_cursor_with_the_fewest_batches_ahead_comes_first():
    window = window_of(8)
    claims = claims_of(window)
    walks(window, 0, ("ahead", 1)).fill = (0, 2)
    behind = walks(window, 5, ("behind", 1))
    for step in (0, 1):
        ready(window, step)
    assert claims.neediest() is behind


def test_rule_1_a_blocked_cursor_comes_before_one_with_fewer_ahead():
    window = window_of(8)
    claims = claims_of(window)
    blocked = walks(window, 0, ("blocked", 1))
    blocked.fill, blocked.blocked = (0, 1), True
    ready(window, 0)
    walks(window, 5, ("behind", 1))
    assert claims.neediest() is blocked


def test_rule_1_a_waiting_cursor_has_its_turn_when_no_living_one_may_have_more():
    window = window_of(8)
    claims = claims_of(window)
    waiting = walks(window, 0, ("trainer", 2), waiting=True)
    living = walks(window, 7)
    assert claims.neediest() is living
    assert claimed(claims) == (0, 7)
    assert claimed(claims) == (0, 8), "the epoch's last one"
    assert claims.neediest() is waiting


def test_rule_1_a_waiting_cursor_has_no_turn_while_a_living_one_awaits_its_plan():
    window = window_of(8)
    claims = claims_of(window, lambda position: Contents(ROWS) if position[1] < 7 else None)
    walks(window, 0, ("trainer", 2), waiting=True)
    walks(window, 7)
    assert claims.neediest() is None
    assert claims.has_work(), "once the plan is known"


def test_rule_3a_pieces_that_are_queued_come_before_a_new_batch():
    window = window_of(8)
    claims = claims_of(window)
    walks(window)
    pieces = [claims.next_piece(WORKER, into(2)) for _ in range(3)]
    assert [(piece.batch.position, piece.first, piece.end) for piece in pieces] == [
        ((0, 0), 0, 2),
        ((0, 0), 2, 4),
        ((0, 1), 0, 2),
    ]


def test_rule_5_the_first_batch_is_one_piece_and_no_other_is_claimed_before_there_is_a_ring():
    window = window_of(0)
    claims = claims_of(window)
    walks(window)
    piece = claims.next_piece(WORKER, into(4))
    assert (piece.first, piece.end) == (0, ROWS)
    assert claims.next_piece(WORKER, into(4)) is None
    assert not claims.has_work()


def test_rule_6_a_batch_that_is_there_is_not_made_again():
    window = window_of(8)
    claims = claims_of(window)
    batch = ready(window, 0)
    walks(window)
    assert claimed(claims) == (0, 1)
    assert window.batches[0, 0] is batch


def test_rule_6_a_batch_of_another_plan_is_dropped():
    window = window_of(8)
    claims = claims_of(window, lambda position: Contents(ROWS, b"keys", plan=2))
    walks(window)
    former, current = ready(window, 0), ready(window, 1)
    former.plan, current.plan = 1, 2
    former.plan_verified = current.plan_verified = False
    claims.prove()
    assert window.batches == {(0, 1): current}
    assert current.plan_verified
    assert claims.dropped_for_plan == 1


def test_rule_6_no_plan_is_asked_for_what_no_cursor_comes_to():
    """Found by a ring that was adopted: what was left of the last epoch had a planner begin with that one."""
    window = window_of(8)
    asked = []
    claims = claims_of(window, lambda position: asked.append(position))
    walks(window, 3)
    behind, ahead = ready(window, 2), ready(window, 3)
    behind.plan_verified = ahead.plan_verified = False
    claims.prove()
    assert asked == [(0, 3)]
    assert claims.dropped_for_plan == 0


def test_rule_6_the_error_of_the_sampler_stands_in_the_batch_s_place():
    window = window_of(8)
    claims = claims_of(window, lambda position: Contents(0, error=b"it raised" if position[1] == 0 else None))
    walks(window)
    assert claimed(claims) == (0, 1), "no worker is needed for it"
    assert window.batches[0, 0].error == b"it raised"


def test_rule_7_without_a_slot_nothing_is_claimed():
    window = window_of(2)
    claims = claims_of(window)
    walks(window)
    assert [claimed(claims) for _ in range(3)] == [(0, 0), (0, 1), None]
    assert claims.take_need() == (False, False), "nobody awaits the third"


def test_rule_7_offers_are_recalled_for_a_batch_that_a_living_cursor_awaits():
    window = window_of(1)
    claims = claims_of(window)
    batch = ready(window, 0)
    window.ring.lease(batch.grant, "another")
    cursor = walks(window, 5)
    assert claimed(claims) is None
    assert claims.take_need() == (True, False)
    assert claims.take_need() == (False, False), "it was taken"
    cursor.blocked = True
    assert claimed(claims) is None
    assert claims.take_need() == (True, True)


def test_rule_8_a_stream_that_rests_claims_nothing_and_makes_what_is_claimed():
    window = window_of(8)
    claims = claims_of(window)
    walks(window)
    assert claims.next_piece(WORKER, into(2)).first == 0
    claims.rests = True
    assert claims.next_piece(WORKER, into(2)).first == 2
    assert claims.next_piece(WORKER, into(2)) is None


def unstored(claims: Claims) -> Batch:
    """A batch that is made, and goes to a worker again as its file found no room."""
    piece = claims.next_piece(WORKER, into(1))
    assert piece is not None
    batch = piece.batch
    batch.under_way -= 1
    batch.pending.append(piece)
    claims.queue.add([piece], first=True)
    claims.finds_no_room(batch)
    return batch


def test_rule_9_what_comes_later_gives_way_to_a_batch_that_finds_no_room_and_is_not_claimed_meanwhile():
    """Found as a trainer that waited for ever for a batch, beside a disk full of those after it."""
    window = window_of(8)
    claims = claims_of(window)
    walks(window, waiting=True)
    for step in (1, 2, 3):
        ready(window, step)
    batch = unstored(claims)
    assert batch.position == (0, 0)
    assert sorted(window.batches) == [(0, 0), (0, 1), (0, 2)]
    assert claimed(claims) == (0, 0), "it is tried again"
    assert claimed(claims) is None, "3 would take its place"
    assert not claims.has_more()
    batch.under_way -= 1
    batch.filled = True
    assert claimed(claims) == (0, 3)


def test_rule_9_a_batch_that_comes_sooner_is_claimed_all_the_same():
    window = window_of(8)
    claims = claims_of(window)
    walks(window, 5, waiting=True)
    later = unstored(claims)
    assert later.position == (0, 5)
    walks(window, 1, ("another", 2), waiting=True)
    later.pending.clear()
    later.under_way = 1
    assert claimed(claims) == (0, 1)


def test_rule_9_who_is_dropped_holds_nobody_up():
    window = window_of(8)
    claims = claims_of(window)
    walks(window, waiting=True)
    window.drop(unstored(claims))
    claims.finds_no_room(Batch((0, 4), ROWS, cancelled=True))
    assert claimed(claims) == (0, 0)
    assert claimed(claims) == (0, 1)


def test_rule_10_another_machine_gets_the_first_unclaimed_batch_at_some_distance():
    window = window_of(8)
    claims = claims_of(window)
    walks(window)
    piece = claims.claim_ahead(3)
    assert (piece.batch.position, piece.rows, piece.batch.under_way) == ((0, 3), ROWS, 1)
    assert claims.claim_ahead(3).batch.position == (0, 4)
    assert [claimed(claims) for _ in range(4)] == [(0, 0), (0, 1), (0, 2), (0, 5)]


def test_rule_10_there_stays_a_slot_for_each_batch_before_it():
    window = window_of(4)
    claims = claims_of(window)
    walks(window)
    assert claims.claim_ahead(3).batch.position == (0, 3)
    # Three slots are left, for the two before it and itself; and then two, for the two before.
    assert claims.claim_ahead(2).batch.position == (0, 2)
    assert window.ring.claimable == 2
    held = window.ring.claim()
    assert claims.claim_ahead(1) is None, "the last slot is for the batch that comes next"
    window.ring.abandon(held)
    assert [claimed(claims) for _ in range(2)] == [(0, 0), (0, 1)]


def test_rule_10_where_nothing_lies_so_far_ahead_the_last_one_will_do_if_need_be():
    window = window_of(4)
    claims = claims_of(window)
    walks(window)
    assert claims.claim_ahead(20) is None
    assert claims.claim_ahead(20, or_last=True).batch.position == (0, 3)


def test_rule_10_nothing_gives_way_and_nothing_is_claimed_that_a_worker_here_is_about_to_make():
    window = window_of(4)
    claims = claims_of(window)
    walks(window)
    for step in range(3):
        ready(window, step)
    assert claims.claim_ahead(0).batch.position == (0, 3)
    assert claims.claim_ahead(0, or_last=True) is None
    assert all((0, step) in window.batches for step in range(3))
