"""The rules of task sizes, one by one."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.task_sizes import LONG_PIECE_S, SHORT_PIECE_S, SHORTEST_PIECE_S, TaskSizes
from tests.unit.daemon.engine.stream.rooms import stream_of, works

ROWS = 10


def sizes_of(ready: int, *, starting: int = 0, by_turns: bool = False) -> TaskSizes:
    """The sizes of a stream with so many workers."""
    stream = stream_of(0)
    stages = [WorkerStage.READY] * ready + [WorkerStage.STARTING] * starting
    workers = {number: works(stream, number, stage) for number, stage in enumerate(stages)}
    sizes = TaskSizes(ROWS, workers, by_turns=by_turns)
    sizes.cut_anew()
    return sizes


def test_before_a_worker_is_there_a_batch_is_one_piece():
    sizes = TaskSizes(ROWS, {}, by_turns=False)
    assert (sizes.row_s, sizes.pieces, sizes.tasks_a_worker) == (0.0, 1, 1)


def test_rule_4_nothing_waits_behind_what_nobody_knows_the_length_of():
    """Found with lookback=: each worker had four halves of batches of photographs, and the digest of the first batch
    came after them all."""
    assert sizes_of(2).tasks_a_worker == 1


def test_rule_1_a_batch_is_cut_into_one_piece_a_ready_worker():
    assert sizes_of(3, starting=2).pieces == 3
    assert sizes_of(0, starting=2).pieces == 1


def test_rule_1_no_piece_is_very_short():
    sizes = sizes_of(8)
    sizes.timed(ROWS, 3.5 * SHORTEST_PIECE_S)
    assert sizes.pieces == 3
    sizes = sizes_of(8)
    sizes.timed(ROWS, SHORTEST_PIECE_S / 10)
    assert sizes.pieces == 1


def test_rule_1_how_long_a_row_takes_follows_slowly():
    sizes = sizes_of(1)
    sizes.timed(4, 4.0)
    assert sizes.row_s == 1.0
    sizes.timed(1, 2.0)
    assert 1.0 < sizes.row_s < 1.5


def pieces_ahead(ready: int, row_s: float, ring_batches: float = 32.0) -> list[int]:
    """The pieces of batches before which 0, 1, 2, ... 9 others come."""
    sizes = sizes_of(ready)
    sizes.timed(1, row_s)
    return [sizes.pieces_at(lead, ring_batches) for lead in range(10)]


def test_rule_2_a_later_batch_has_fewer_pieces():
    """Found beside another stream: with a task a row, workers that waited took half of the CPUs for their tasks."""
    assert pieces_ahead(8, 0.02) == [8, 8, 4, 3, 2, 2, 2, 2, 1, 1]
    assert pieces_ahead(2, 0.02) == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]


def test_rule_2_all_workers_are_busy_with_half_of_the_ring():
    assert pieces_ahead(8, 0.02, ring_batches=4.0) == [8, 8, 4, 4, 4, 4, 4, 4, 4, 4]
    assert pieces_ahead(64, 0.02)[-1] == 8
    assert sizes_of(64).pieces_at(1000, 32.0) == 4


def test_rule_2_no_piece_is_very_long():
    assert pieces_ahead(8, 0.1)[-1] == 4
    assert pieces_ahead(8, 10.0) == [8] * 10


def test_rule_3_a_batch_whose_worker_is_decided_is_one_piece():
    sizes = sizes_of(3, by_turns=True)
    sizes.timed(ROWS, 1.0)
    assert sizes.pieces == 1


def test_rule_4_a_worker_has_the_more_tasks_the_shorter_they_are():
    by_duration = []
    for piece_s in (2 * LONG_PIECE_S, LONG_PIECE_S / 2, SHORT_PIECE_S / 2):
        sizes = sizes_of(1)
        sizes.timed(ROWS, piece_s)
        by_duration.append(sizes.tasks_a_worker)
    assert by_duration == [1, 2, 4]
