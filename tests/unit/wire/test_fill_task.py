"""A fill task and its row in messages.Fill say the same."""

from __future__ import annotations

import pytest

from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.messages import DIGEST, FILL_ROWS, Unfit

ROW = (7, FILL_ROWS, 2, 300, 16, 32, 5)


def test_a_row_has_the_fields_in_their_order():
    task = FillTask.from_row(ROW)
    assert (task.number, task.kind, task.position) == (7, FILL_ROWS, (2, 300))
    assert (task.first, task.end, task.rows, task.slot) == (16, 32, 16, 5)
    assert task.deadly == ()


def test_what_follows_the_slot_are_samples_that_end_their_workers():
    task = FillTask.from_row((*ROW, 20, 0, 20, 1, -1, 0))
    assert task.deadly == ((20, 0), (20, 1), (-1, 0))


@pytest.mark.parametrize("row", [ROW, (*ROW, 20, 0), (*ROW, 20, 0, 31, 2)])
def test_a_row_that_was_read_is_written_as_it_was(row):
    assert FillTask.from_row(row).row == row


def test_the_end_row_of_a_digest_is_the_payload_s_length():
    assert FillTask(1, DIGEST, 0, 3, 0, 4096, 2).payload_bytes == 4096


def test_a_task_that_cannot_be_done_either_deviates_or_needs_room():
    assert Unfit.deviating(7, "row 3: dtype float64").deviates
    assert Unfit.deviating(7, "row 3: dtype float64") == Unfit(7, 0, "row 3: dtype float64")
    assert not Unfit.needing(7, 8192).deviates
    assert Unfit.needing(7, 8192).payload_bytes == 8192
