"""What a stream has on other machines: who may take another batch, and when answers are to be expected."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.remote_work import (
    CHECKED_EVERY,
    MOST_NODES,
    Arrivals,
    RemoteTask,
    RemoteWork,
    RemoteWorker,
)


def work_of(*nodes: str, proved: bool = True) -> RemoteWork:
    """Remote workers 1, 2, ... on these nodes."""
    work = RemoteWork(len(nodes))
    for number, node in enumerate(nodes, 1):
        worker = work.workers[number] = RemoteWorker(number, node)
        work.node_of(worker).is_proved = proved
    return work


def give(work: RemoteWork, number: int, task: int = 1) -> None:
    work.workers[number].tasks[task] = RemoteTask(task, Piece(Batch((0, task), 4), 0, 4), 0.0, 0)


def may_take(work: RemoteWork) -> list[int]:
    return [number for number, worker in work.workers.items() if work.may_take(worker, 2)]


def test_a_worker_has_so_many_tasks_at_once():
    work = work_of("a", "b")
    give(work, 1, 1)
    assert may_take(work) == [1, 2]
    give(work, 1, 2)
    assert may_take(work) == [2]


def test_a_node_that_is_not_proved_has_one_task():
    work = work_of("a", "a", "b", proved=False)
    assert may_take(work) == [1, 2, 3]
    give(work, 1)
    assert may_take(work) == [3]
    work.compared("a", is_equal=True)
    assert may_take(work) == [1, 2, 3]


def test_a_node_whose_first_batch_is_being_compared_has_none_until_that_is_known_or_nobody_wants_it():
    work = work_of("a", "b", proved=False)
    work.nodes["a"].checked = batch = Batch((0, 1), 4)
    assert may_take(work) == [2]
    batch.cancelled = True
    assert may_take(work) == [1, 2]


def test_a_node_whose_batch_differs_gets_no_more():
    work = work_of("a", "b")
    work.compared("a", is_equal=False)
    assert may_take(work) == [2]
    assert work.nodes["a"].mismatches == 1


def test_a_doubted_node_is_compared_again():
    work = work_of("a")
    work.nodes["a"].batches = 5
    assert not work.is_check_due(work.nodes["a"])
    work.doubt("a")
    assert work.is_check_due(work.nodes["a"])


def test_a_worker_that_has_not_come_or_is_late_or_ends_gets_nothing():
    work = work_of("a", "a", "a")
    work.workers[1].node = ""
    work.workers[2].late.add(7)
    work.workers[3].is_stopping = True
    assert may_take(work) == []


def test_the_first_batch_of_a_node_is_compared_and_then_one_of_many():
    node = work_of("a", proved=False).nodes["a"]
    work = RemoteWork(1)
    due = []
    for batch in range(2 * CHECKED_EVERY + 1):
        if work.is_check_due(node):
            due.append(batch)
            node.is_proved = True
        node.batches += 1
    assert due == [0, CHECKED_EVERY, 2 * CHECKED_EVERY]


def test_of_nodes_that_have_gone_so_many_are_remembered_and_those_that_are_distrusted():
    work = work_of("here")
    for number in range(MOST_NODES + 10):
        work.compared(f"gone {number}", is_equal=number != 3)
    work.forget_nodes()
    assert len(work.nodes) == MOST_NODES + 2
    assert {"here", "gone 3", f"gone {MOST_NODES + 9}"} <= set(work.nodes)
    assert "gone 0" not in work.nodes


def test_what_is_not_known_yet_is_as_somebody_thinks():
    arrivals = Arrivals()
    assert not arrivals.are_known
    assert arrivals.lead(9) == 9


def test_a_batch_is_given_out_further_ahead_than_those_that_become_ready_meanwhile():
    arrivals = Arrivals()
    arrivals.came(2.0, 20)
    assert arrivals.lead(9) == 26
    for _ in range(100):
        arrivals.came(2.0, 4)
    assert arrivals.lead(9) == 6


def test_what_takes_evenly_long_is_overdue_soon_after_and_what_does_not_much_later():
    even, uneven = Arrivals(), Arrivals()
    for turn in range(200):
        even.came(1.0, 1)
        uneven.came(0.5 + turn % 2, 1)
    assert 1.0 <= even.overdue_after_s < 1.05
    assert uneven.overdue_after_s > 2.5
