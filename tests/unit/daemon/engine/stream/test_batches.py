"""Into which pieces a batch is cut, and what kind of task each is."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.batches import Batch, Piece, cut
from prefetchd.ring.policy import Grant
from prefetchd.wire.messages import DIGEST, FILL_ROWS, FILL_WHOLE, MEASURE

GRANT = Grant((0,), 1)


@pytest.mark.parametrize(
    ("pieces", "bounds"),
    [(1, [(0, 7)]), (3, [(0, 2), (2, 4), (4, 7)]), (9, [(row, row + 1) for row in range(7)]), (0, [(0, 7)])],
)
def test_a_batch_is_cut_into_pieces_of_nearly_equal_length(pieces, bounds):
    assert [(piece.first, piece.end) for piece in cut(Batch((0, 0), 7, GRANT), pieces)] == bounds


def test_one_that_is_filled_whole_is_not_cut():
    (piece,) = cut(Batch((0, 0), 7, GRANT, whole=True), 3)
    assert piece.rows == 7


def test_one_without_rows_is_one_piece():
    (piece,) = cut(Batch((0, 0), 0, GRANT), 3)
    assert piece.rows == 0


@pytest.mark.parametrize(
    ("grant", "whole", "digests", "kind"),
    [
        (None, False, False, MEASURE),
        (None, True, False, MEASURE),
        (GRANT, False, False, FILL_ROWS),
        (GRANT, True, False, FILL_WHOLE),
        (GRANT, True, True, DIGEST),
    ],
)
def test_what_a_task_is_depends_on_the_batch_s_room(grant, whole, digests, kind):
    assert Piece(Batch((0, 0), 7, grant, whole), 0, 7, digests=digests).kind == kind


def test_one_task_is_about_all_rows_of_what_is_measured_or_made_whole():
    assert Batch((0, 0), 7).is_whole_task
    assert Batch((0, 0), 7, GRANT, whole=True).is_whole_task
    assert not Batch((0, 0), 7, GRANT).is_whole_task


def test_what_is_filled_can_be_offered_and_an_error_too():
    assert not Batch((0, 0), 7, GRANT).done
    assert Batch((0, 0), 7, GRANT, filled=True).done
    assert Batch((0, 0), 7, error=b"it raised").done
