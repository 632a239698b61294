"""What a stream has on other machines: who may take another batch, and when answers are to be expected."""

from __future__ import annotations

import itertools

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.remote_work import (
    COMPARED_EVERY_S,
    COMPARING_SHARE,
    FAILURES_BORNE,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MOST_NODES,
    Arrivals,
    Comparing,
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


def may_take(work: RemoteWork, now_s: float = 0.0) -> list[int]:
    return [number for number, worker in work.workers.items() if work.may_take(worker, 2, now_s)]


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
    work.compared("a", (0, 1), 0, is_whole=True)
    assert may_take(work) == [1, 2, 3]


def test_a_node_whose_first_batch_is_being_compared_has_none_until_that_is_known_or_nobody_wants_it():
    work = work_of("a", "b", proved=False)
    work.nodes["a"].checked = batch = Batch((0, 1), 4)
    assert may_take(work) == [2]
    batch.cancelled = True
    assert may_take(work) == [1, 2]


def test_a_node_whose_batch_differs_gets_no_more():
    work = work_of("a", "b")
    work.distrust("a", "a file differs")
    assert may_take(work) == [2]
    assert work.nodes["a"].mismatches == 1
    assert work.nodes["a"].why == "a file differs"


def test_a_mismatch_makes_every_other_node_prove_itself():
    work = work_of("a", "b")
    work.nodes["b"].since_doubt = 900
    work.distrust("a", "a file differs")
    assert work.comparing_due(work.nodes["b"], 0.0, 0) is Comparing.ALL
    work.compared("b", (0, 1), 0, is_whole=True)
    assert may_take(work) == [2]


def test_a_doubted_node_is_compared_again():
    work = work_of("a")
    node = work.nodes["a"]
    node.since_doubt = 5
    assert work.comparing_due(node, 0.0, 0) is Comparing.NOTHING
    work.doubt("a")
    assert work.comparing_due(node, 0.0, 0) is Comparing.ALL


def test_a_node_that_fails_again_and_again_is_paused_longer():
    work = work_of("a")
    now_s, pauses = 0.0, []
    for _ in range(7):
        for _ in range(FAILURES_BORNE):
            assert may_take(work, now_s) == [1]
            work.failed("a", "no such file", now_s)
        assert may_take(work, now_s) == []
        pauses.append(work.nodes["a"].again_s - now_s)
        now_s = work.nodes["a"].again_s
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert work.why_unused == "no such file"
    work.worked(work.nodes["a"])
    assert work.why_unused == ""


def test_failures_between_batches_pause_no_node():
    work = work_of("a")
    for _ in range(3 * FAILURES_BORNE):
        assert not work.failed("a", "a worker has died", 0.0)
        work.worked(work.nodes["a"])


def test_a_worker_that_has_not_come_or_is_late_or_ends_gets_nothing():
    work = work_of("a", "a", "a")
    work.workers[1].node = ""
    work.workers[2].late.add(7)
    work.workers[3].is_stopping = True
    assert may_take(work) == []


def test_batches_1_2_4_8_of_a_node_are_compared_whole():
    work = work_of("a")
    node, due = work.nodes["a"], []
    for batch in range(1, 1001):
        if work.comparing_due(node, 0.0, 0) is Comparing.ALL:
            due.append(batch)
        node.since_doubt += 1
    assert due == [2**each for each in range(10)]


def test_a_bad_node_in_a_hundred_is_found_in_a_minute():
    """Eight CPUs here fill all the time. A hundred nodes make a batch a second each; a row takes 5 ms."""
    work = work_of(*map(str, range(100)))
    for node in work.nodes.values():
        node.since_doubt = 1000
    compared: dict[str, list[float]] = {name: [] for name in work.nodes}
    for tenth in range(3000):
        now_s = 60.0 + tenth / 10
        for name in [str(number) for number in range(tenth % 10, 100, 10)]:
            node = work.nodes[name]
            found = work.comparing_due(node, now_s, int(8e6 * (now_s - 60.0)))
            assert found is not Comparing.ALL
            if found is Comparing.ROW:
                node.compared_s = now_s
                work.compared(name, (0, tenth), 5000, is_whole=False)
                compared[name].append(now_s)
    gaps = [later - former for times in compared.values() for former, later in itertools.pairwise(times)]
    assert min(gaps) >= COMPARED_EVERY_S
    assert max(gaps) < 60.0
    assert work.comparing_us < COMPARING_SHARE * 8e6 * 300
    assert min(map(len, compared.values())) > 10


def test_what_comparing_may_cost_is_bounded():
    work = work_of("a")
    node = work.nodes["a"]
    node.since_doubt = 1000
    work.compared("a", (0, 1), 1_280_000, is_whole=False)
    assert work.comparing_due(node, 100.0, 120_000_000) is Comparing.NOTHING
    assert work.comparing_due(node, 100.0, 130_000_000) is Comparing.ROW


def test_batches_handed_out_are_those_before_a_position():
    node = work_of("a").nodes["a"]
    for position in [(1, 0), (0, 7), (0, 3), (0, 3)]:
        node.was_made(position)
    assert node.handed_out((1, 0)) == [(0, 3), (0, 7)]


def test_of_nodes_that_have_gone_so_many_are_remembered_and_those_that_are_distrusted():
    work = work_of("here")
    for number in range(MOST_NODES + 10):
        name = f"gone {number}"
        work.distrust(name, "differs") if number == 3 else work.doubt(name)
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
