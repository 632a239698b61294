"""The rules of the remote pool, one by one, in a world whose machines do what a test says."""

from __future__ import annotations

import dataclasses

import pytest

from prefetchd.daemon.engine.commands import CloseBridge, OpenBridge, TellBridge
from prefetchd.daemon.engine.pool.remote_pool import LONGEST_PAUSE_S, TASKS_AT_ONCE
from prefetchd.daemon.engine.stream import remote_work
from prefetchd.daemon.engine.stream.remote_work import Node
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Filled, FillRemote, Measured
from prefetchd.wire.stream_spec import StreamSpec
from tests.property.remote_world import NODES
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 400, 4, remote_workers=2)


class Bed:
    """A trainer that waits for batches, two workers here, and two on other machines, one on each."""

    def __init__(self, *, slots: int = 24, spec: StreamSpec = SPEC, remote: bool = True, task_us: int = 0) -> None:
        self.world = World(2, slots, remote=remote)
        if task_us:
            self.world.task_us = lambda stream, rows: task_us
        self.trainer = self.world.join(spec)
        self.trainer.place(1, 0, 0, False)
        self.arrive()
        self.world.work(0)
        self.arrive()

    def arrive(self) -> None:
        while self.world.pending:
            self.world.deliver(0)

    @property
    def stream(self):
        return next(iter(self.world.engine.streams.values()))

    @property
    def bridge(self):
        (found,) = self.world.remote.bridges.values()
        return found

    def begins(self) -> None:
        """Batches are made here until remote workers are there."""
        for _ in range(50):
            if self.world.remote.bridges and self.bridge.workers and all(self.bridge.workers.values()):
                return
            self.world.remote.arrive()
            self.work_here(1)
        raise AssertionError("no remote worker has come")

    def bridge_ends(self, reason: str, *, is_final: bool) -> None:
        number = self.bridge.number
        self.world.remote.bridges.clear()
        self.world.engine.bridge_ended(number, reason, is_final=is_final)
        self.world.run()

    def told(self) -> list[str]:
        """What the trainer was shown, less of whom it is."""
        head = f"prefetchd: stream {self.stream.name!r}: "
        assert all(text.startswith(head) for text in self.trainer.shown)
        return [text.removeprefix(head) for text in self.trainer.shown]

    def given(self) -> list[tuple[int, int]]:
        """(worker, step) of all that the bridge was told to make and has not made."""
        told = [
            (each.worker, row[3]) for each in self.bridge.told if isinstance(each, FillRemote) for row in each.tasks
        ]
        return told + [(each.worker, each.task.step) for each in self.bridge.tasks]

    def all_is_made_elsewhere(self) -> None:
        while self.world.remote.steps():
            self.world.remote.step(0)

    def work_here(self, tasks: int = 100) -> None:
        for turn in range(tasks):
            if any(worker.tasks for worker in self.world.workers.values()):
                self.world.work(turn)

    def takes(self, batches: int) -> None:
        for _ in range(batches):
            if self.trainer.can_next(1):
                self.trainer.next(1, hold=False)


def test_rule_1_no_bridge_is_opened_before_it_is_known_what_batches_cost():
    bed = Bed()
    assert not bed.world.remote.bridges
    assert bed.stream.remote.why_not.startswith("not measured yet")
    bed.work_here(2)
    assert bed.bridge.stream == bed.stream.number


def test_rule_1_what_is_cheap_to_make_stays_here():
    bed = Bed(task_us=1)
    bed.work_here()
    bed.stream.counters.fill_us, bed.stream.counters.payload_bytes = 1_000_000, 10**9
    bed.world.tick()
    assert not bed.world.remote.bridges
    assert "to fill here" in bed.stream.remote.why_not


def test_rule_1_what_others_have_made_makes_nothing_cheap():
    """Found as streams that had no remote workers any more once most of their batches had come from some."""
    bed = Bed()
    bed.begins()
    counters = bed.stream.counters
    counters.fill_us, counters.payload_bytes = 8_000_000, 10**9
    for _ in range(9):
        counters.batch_is_ready_from_elsewhere(10**9)
    bed.world.remote.kill_bridge(0)
    bed.world.now += 5
    bed.world.tick()
    assert bed.world.remote.bridges


def test_rule_1_the_bound_is_what_receiving_has_cost():
    bed = Bed()
    bed.begins()
    bridge, counters = bed.bridge.number, bed.stream.counters
    counters.fill_us, counters.payload_bytes, counters.elsewhere_bytes = 6_000_000, 10**9, 0
    bed.world.engine.bridge_used(bridge, 4 * 10**9, 8_000_000, 0)
    bed.world.tick()
    assert bed.stream.remote.receiving_s_a_gb == 2.0
    assert bed.world.remote.bridges
    bed.world.engine.bridge_used(bridge, 4 * 10**9, 30_000_000, 0)
    bed.world.run()
    bed.world.tick()
    assert not bed.world.remote.bridges, "what it has under way is made here"
    assert bed.stream.remote.why_not.startswith("too cheap: a GB takes 6.0 s to fill here, and would pay from 7.7 s")
    bed.work_here()
    bed.takes(20)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (dataclasses.replace(SPEC, store="files", directory="/mnt/ram"), "files"),
        (dataclasses.replace(SPEC, dealt=True, workers=2), "in turn"),
    ],
)
def test_rule_1_what_depends_on_its_worker_stays_here(spec, why):
    bed = Bed(spec=spec)
    bed.work_here(4)
    bed.world.tick()
    assert not bed.world.remote.bridges
    assert why in bed.stream.remote.why_not


def test_rule_1_a_daemon_without_a_cluster_says_so():
    bed = Bed(remote=False)
    bed.work_here(4)
    assert "--ray" in bed.stream.remote.why_not
    assert bed.told() == [f"there are no remote workers: {bed.stream.remote.why_not}"], "its trainer is told, once"


def test_rule_1_a_stream_that_asks_for_none_has_none():
    bed = Bed(spec=dataclasses.replace(SPEC, remote_workers=0))
    bed.work_here(4)
    assert bed.stream.remote is None
    assert not bed.world.remote.bridges


def test_rule_2_as_many_come_as_are_asked_for_beside_those_here():
    bed = Bed()
    bed.begins()
    assert len(bed.bridge.workers) == 2
    assert len(bed.stream.workers) == 2


def test_rule_2_they_are_given_back_when_they_have_nothing_to_do_and_come_again():
    bed = Bed(slots=6)
    bed.begins()
    for _ in range(20):
        bed.all_is_made_elsewhere()
        bed.work_here()
    assert bed.stream.remote.workers
    bed.world.now += 31
    bed.world.tick()
    bed.all_is_made_elsewhere()
    assert not bed.stream.remote.workers
    assert bed.stream.remote.is_given_back
    bed.takes(6)
    bed.world.now += 1
    bed.world.tick()
    assert len(bed.stream.remote.workers) == 2
    assert not bed.stream.remote.is_given_back


def test_rule_2_those_that_have_not_come_yet_are_not_given_back():
    # A cluster may start machines for minutes before an actor has a place.
    bed = Bed()
    for _ in range(4):
        bed.world.remote.reach()
        bed.work_here(1)
    asked = list(bed.bridge.workers)
    assert len(asked) == 2
    assert not any(bed.bridge.workers.values())
    for _ in range(3):
        bed.world.now += 31
        bed.world.tick()
        bed.world.remote.reach()
    assert list(bed.bridge.workers) == asked
    bed.begins()
    bed.world.now += 29
    bed.world.tick()
    bed.world.remote.reach()
    assert list(bed.bridge.workers) == asked, "and then they are there for as long as others"


def test_why_there_are_none_is_not_said_any_more_when_the_cluster_is_reached_again():
    bed = Bed()
    bed.begins()
    bed.world.remote.kill_bridge(0)
    assert bed.stream.remote.why_not == "killed"
    bed.world.now += 5
    bed.world.tick()
    bed.world.remote.reach()
    assert not bed.stream.remote.why_not


def test_a_later_loader_of_the_stream_may_want_fewer_and_more_again():
    bed = Bed()
    bed.begins()
    bed.all_is_made_elsewhere()
    bed.stream.serve_as(dataclasses.replace(bed.stream.spec, remote_workers=1))
    for _ in range(4):
        bed.world.tick()
        bed.all_is_made_elsewhere()
    assert len(bed.stream.remote.workers) == 1
    bed.stream.serve_as(dataclasses.replace(bed.stream.spec, remote_workers=3))
    bed.world.tick()
    bed.all_is_made_elsewhere()
    assert len(bed.stream.remote.workers) == 3


def test_the_workers_here_are_not_tuned_while_others_make_batches_too():
    bed = Bed()
    bed.world.engine.limits = dataclasses.replace(bed.world.engine.limits, autotune=True)
    assert bed.world.engine.is_tuned(bed.stream)
    bed.begins()
    assert not bed.world.engine.is_tuned(bed.stream)


def test_rule_3_workers_here_make_what_comes_next_and_others_what_lies_ahead():
    bed = Bed()
    bed.begins()
    here = {worker.tasks[0].step for worker in bed.world.workers.values() if worker.tasks}
    elsewhere = {step for _, step in bed.given()}
    assert elsewhere
    assert max(here) < min(elsewhere)


def test_rule_3_a_proved_worker_has_two_tasks_at_a_time():
    bed = Bed()
    bed.begins()
    for _ in range(4):
        bed.all_is_made_elsewhere()
        bed.work_here()
        bed.takes(20)
    workers = [worker for worker, _ in bed.given()]
    assert sorted(workers) == sorted([*bed.bridge.workers] * TASKS_AT_ONCE)


def test_rule_3_what_is_made_elsewhere_never_takes_the_slots_of_what_comes_before():
    bed = Bed(slots=4)
    bed.begins()
    for _ in range(30):
        bed.all_is_made_elsewhere()
        bed.work_here()
        bed.takes(1)
    assert bed.trainer.cursors[1].step > 25


def test_rule_3_a_first_answer_that_took_long_is_not_the_last_one():
    bed = Bed(slots=12)
    bed.begins()
    bed.world.now += 1
    bed.stream.remote.arrivals.came(1.0, 100)
    made = bed.world.remote.made
    for _ in range(150):
        bed.world.now += 0.1
        bed.all_is_made_elsewhere()
        bed.work_here(2)
        bed.takes(2)
        bed.stream.remote.arrivals.came(1.0, 2)
    assert bed.world.remote.made > made + 20


def test_rule_4_the_first_batch_of_each_node_is_compared():
    bed = Bed()
    bed.begins()
    bed.all_is_made_elsewhere()
    assert not any(node.is_proved for node in bed.stream.remote.nodes.values())
    bed.work_here()
    assert bed.world.remote.compared == 2
    assert all(node.is_proved for node in bed.stream.remote.nodes.values())


def test_rule_4_a_node_that_makes_other_batches_is_not_used_and_nothing_of_it_is_served():
    bed = Bed()
    bed.world.remote.odd_nodes = frozenset(NODES[:1])
    bed.begins()
    for _ in range(10):
        bed.all_is_made_elsewhere()
        bed.work_here()
        # Each batch that is handed out is looked at.
        bed.takes(20)
    odd = bed.stream.remote.nodes[NODES[0]]
    assert (odd.is_distrusted, odd.mismatches) == (True, 1)
    assert bed.stream.remote.nodes[NODES[1]].batches > 3


def test_rule_4_all_that_a_wrong_node_made_is_made_again():
    bed = Bed(slots=100)
    bed.begins()
    bed.all_is_made_elsewhere()
    bed.work_here()
    node = bed.stream.remote.nodes[NODES[0]]
    assert node.is_proved
    # No other comparison of the first batches, and much was filled here.
    node.since_doubt = 1000
    node.compared_s = bed.world.now
    bed.stream.counters.fill_us = 10**9
    # From now on it goes wrong, and what it makes until the next comparison is not looked at.
    bed.world.remote.odd_nodes = frozenset(NODES[:1])
    unchecked = set()
    for turn in range(60):
        leased = [each.batch for held in bed.stream.leases._leases.values() for each in held.values()]
        unchecked |= {each.position for each in (*bed.stream.window.batches.values(), *leased) if each.node == NODES[0]}
        if node.is_distrusted:
            break
        bed.world.now += remote_work.COMPARED_EVERY_S if turn == 20 else 0
        bed.all_is_made_elsewhere()
        bed.work_here(1)
    assert node.is_distrusted
    assert unchecked
    while bed.trainer.cursors[1].step <= max(step for _, step in unchecked):
        bed.all_is_made_elsewhere()
        bed.work_here()
        # Each batch that is handed out is looked at.
        bed.takes(20)


def differing(bed: Bed, *, is_recent: bool) -> Node:
    """The first node reads a file that is another one here. Returns what is known of the node."""
    task, *_ = [each for each in bed.bridge.tasks if bed.bridge.workers[each.worker] == NODES[0]]
    bed.bridge.tasks.remove(task)
    bed.world.engine.remote_data_differs(task.worker, task.task.number, "/d/1.bin", "its size", is_recent=is_recent)
    bed.world.run()
    assert task.task.position in bed.stream.window.batches
    return bed.stream.remote.nodes[NODES[0]]


def test_rule_4_a_node_whose_file_differs_is_not_used():
    bed = Bed()
    bed.begins()
    bed.world.remote.reach()
    node = differing(bed, is_recent=False)
    assert (node.is_distrusted, node.why) == (True, "/d/1.bin differs in its size")
    (told,) = bed.told()
    assert "/d/1.bin differs in its size" in told
    assert "none of its batches was handed out before" in told


def test_rule_4_a_file_changed_here_just_now_excludes_no_node():
    bed = Bed()
    bed.begins()
    bed.world.remote.reach()
    node = differing(bed, is_recent=True)
    assert (node.is_distrusted, node.failures) == (False, 1)


def test_rule_4_batches_handed_out_by_a_wrong_node_are_named():
    bed = Bed()
    bed.begins()
    bed.all_is_made_elsewhere()
    bed.work_here()
    bed.takes(4)
    node = bed.stream.remote.nodes[NODES[0]]
    for made in (1, 2, 99):
        node.was_made((0, made))
    while not any(bed.bridge.workers[each.worker] == NODES[0] for each in bed.bridge.tasks):
        bed.work_here()
        bed.takes(1)
        bed.world.remote.reach()
    differing(bed, is_recent=False)
    assert "may be wrong: epoch 0: 1-2" in bed.told()[0]
    assert node.suspects >= 2
    assert "99" not in bed.told()[0]


def test_rule_5_what_does_not_come_in_time_is_made_here():
    bed = Bed()
    bed.begins()
    # The nodes hang: nothing comes back.
    waited = 0
    while bed.trainer.cursors[1].step < 12:
        bed.work_here()
        bed.takes(20)
        if not bed.trainer.can_next(1):
            bed.trainer.wait(1)
            waited += 1
            assert waited < 40
            bed.world.now += 1
            bed.world.tick()
            bed.world.remote.arrive()
    work = bed.stream.remote
    assert work.hedges_won >= 2
    assert any(worker.late for worker in work.workers.values())
    taken = {step for worker, step in bed.given() if work.workers[worker].late}
    bed.all_is_made_elsewhere()
    assert not any(worker.late for worker in work.workers.values())
    assert taken


def test_rule_6_an_error_elsewhere_is_made_again_here_where_it_is_an_error_or_none():
    bed = Bed()
    bed.begins()
    step = next(step for _, step in bed.given())
    bed.world.failing.add((0, step))
    bed.all_is_made_elsewhere()
    assert (0, step) in bed.stream.window.batches
    assert bed.stream.window.batches[0, step].error is None
    bed.world.failing.clear()
    bed.work_here()
    bed.takes(40)
    assert bed.trainer.cursors[1].step > step


def test_rule_6_a_node_on_which_all_fails_is_paused():
    bed = Bed()
    bed.begins()
    bed.world.failing |= {(0, step) for step in range(400)}
    for _ in range(8):
        bed.all_is_made_elsewhere()
        bed.world.failing.clear()
        bed.work_here()
        bed.takes(4)
        bed.world.failing |= {(0, step) for step in range(400)}
    nodes = bed.stream.remote.nodes.values()
    assert [node.failures for node in nodes] == [remote_work.FAILURES_BORNE] * 2
    assert bed.stream.remote.why_unused.startswith("node ")
    assert len(bed.told()) == 2, "each node is named once"
    bed.world.failing.clear()
    bed.world.now += remote_work.FIRST_PAUSE_S
    # Workers that had nothing to do for so long would be given back.
    bed.stream.remote.used_s = bed.world.now
    bed.world.tick()
    for _ in range(5):
        bed.takes(4)
        bed.all_is_made_elsewhere()
        bed.work_here()
    assert bed.stream.remote.why_unused == ""


def test_rule_6_the_batches_of_a_worker_that_is_gone_are_made_here_and_nobody_is_blamed():
    bed = Bed()
    bed.begins()
    steps = {step for _, step in bed.given()}
    bed.world.remote.lose_worker(0)
    bed.world.remote.lose_worker(0)
    assert not bed.stream.remote.is_busy
    bed.work_here()
    bed.takes(40)
    assert bed.trainer.cursors[1].step > max(steps)
    assert bed.stream.counters.worker_deaths == 0
    assert sum(node.lost for node in bed.stream.remote.nodes.values()) == len(steps)


def test_rule_7_a_stream_that_waits_gets_its_fair_share():
    bed = Bed(spec=dataclasses.replace(SPEC, remote_workers=6))
    bed.begins()
    first = bed.stream
    other = bed.world.join(dataclasses.replace(SPEC, fingerprint="1" * 32, remote_workers=6), "other")
    other.place(1, 0, 0, False)
    for turn in range(40):
        bed.arrive()
        bed.world.work(turn)
        bed.world.remote.reach()
    second = next(each for each in bed.world.engine.streams.values() if each is not first)
    assert len(first.remote.workers) == 6
    # No CPU is left for the second one.
    bed.world.engine.remote_waits(second.remote.bridge, "waiting for 4 CPUs on one node; each node has 0 free at most")
    bed.world.run()
    bed.world.tick()
    bridge = bed.world.remote.bridges[first.remote.bridge]
    while bridge.tasks:
        bed.world.remote.work_off(bridge, bridge.tasks[0])
    bed.world.tick()
    bed.world.remote.reach()
    assert len(first.remote.workers) == 3
    bed.world.remote.arrive()
    assert second.remote.waits_for == ""
    bed.world.tick()
    assert first.remote.allowed == 6


def test_rule_7_a_trainer_that_is_started_again_finds_its_workers():
    bed = Bed()
    bed.begins()
    workers = set(bed.stream.remote.workers)
    bed.all_is_made_elsewhere()
    bed.work_here()
    bed.world.kill(bed.trainer)
    bed.world.come_to_rest(waits=False)
    bed.world.now += 2 * bed.world.engine.limits.retire_after_s
    bed.world.tick()
    bed.world.remote.reach()
    assert set(bed.stream.remote.workers) == workers
    bed.trainer = bed.world.join(SPEC)
    bed.trainer.place(1, 0, 0, False)
    bed.arrive()
    assert set(bed.stream.remote.workers) == workers


def test_rule_8_a_bridge_that_dies_is_opened_again_after_a_pause_that_grows():
    bed = Bed()
    bed.begins()
    pauses = []
    for _ in range(9):
        bed.world.remote.kill_bridge(0)
        assert not bed.stream.remote.workers
        began = bed.world.now
        while not bed.world.remote.bridges:
            bed.world.now += 0.5
            bed.world.tick()
        pauses.append(bed.world.now - began)
    assert pauses[:4] == [4.0, 8.0, 16.0, 32.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_rule_8_of_several_ends_in_a_row_the_first_is_told():
    bed = Bed()
    bed.begins()
    for _ in range(3):
        bed.world.remote.kill_bridge(0)
        while not bed.world.remote.bridges:
            bed.world.now += 0.5
            bed.world.tick()
    assert bed.told() == ["there are no remote workers: killed; it is tried again"]


def test_workers_that_end_with_their_actor_are_told_of_once():
    bed = Bed()
    bed.begins()
    bed.world.now += 1
    bed.world.tick()
    bed.world.remote.lose_worker(0)
    bed.world.remote.lose_worker(0)
    assert bed.told() == ["a remote worker has ended: its node is gone; its batches are made here"]


def test_rule_8_one_that_would_end_again_is_not_opened_again():
    bed = Bed()
    bed.begins()
    bed.bridge_ends("Ray is not installed", is_final=True)
    assert bed.told() == ["there are no remote workers: Ray is not installed"]
    bed.world.now += 1000
    bed.world.tick()
    assert not bed.world.remote.bridges
    assert bed.stream.remote.why_not == "Ray is not installed"


@pytest.mark.parametrize("is_final", [False, True])
def test_rule_8_a_new_consumer_has_it_tried_at_once(is_final):
    bed = Bed()
    bed.begins()
    bed.bridge_ends("Ray is not installed", is_final=is_final)
    bed.stream.serve_as(bed.stream.spec)
    bed.world.tick()
    assert bed.world.remote.bridges


def test_the_bridge_ends_with_its_stream():
    bed = Bed()
    bed.begins()
    bed.world.kill(bed.trainer)
    bed.world.engine.drop(bed.stream.number, "it is dropped")
    commands = bed.world.engine.take_commands()
    assert any(isinstance(each, CloseBridge) for each in commands)


def test_an_answer_that_cannot_be_one_changes_nothing():
    bed = Bed()
    bed.begins()
    bed.all_is_made_elsewhere()
    worker = next(iter(bed.bridge.workers))
    engine = bed.world.engine
    with pytest.raises(ProtocolError, match="was not given"):
        engine.remote_message(worker, Filled(((999, 100, 1, 4),)), 0, 0.0)
    task = next(iter(bed.stream.remote.workers[worker].tasks), None)
    if task is not None:
        with pytest.raises(ProtocolError, match="payload bytes"):
            engine.remote_message(worker, Filled(((task, 10**9, 1, 4),)), 0, 0.0)
        with pytest.raises(ProtocolError, match="does not send"):
            engine.remote_message(worker, Measured(task, 100, b""), 0, 0.0)
    assert not [each for each in engine.take_commands() if isinstance(each, (OpenBridge, TellBridge))]
