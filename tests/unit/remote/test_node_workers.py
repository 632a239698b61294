"""A node's workers, with real processes and without Ray: what they make is what the daemon's own workers make."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import torch
from prefetchd_client.batches.tensors import BatchReader

from prefetchd.remote import node_workers
from prefetchd.remote.node_workers import NodeAnswer, NodeError, NodeWorkers
from prefetchd.ring.capacity import aligned_slot_bytes
from prefetchd.wire.framing import decode
from prefetchd.wire.messages import FILL_ROWS, FILL_WHOLE, Filled, FillFailed, Spent, Unfit
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.stream_spec import StreamSpec
from tests.contract import programs
from tests.contract.backend_harness import Stage
from tests.scenario.datasets import Dice, Made
from tests.scenario.waiting import is_gone, open_fds, until
from tests.unit.remote.programs import Halting, init_leaves, program_of

SLOT_BYTES = aligned_slot_bytes(1 << 14)
TASK = 77
"""The daemon's number of the task that a test gives."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = Stage("executed", runtime_paths(tmp_path_factory.mktemp("here") / "d.sock"))
    yield made
    made.close()


@contextlib.contextmanager
def workers_of(
    dataset: Any,
    spec: StreamSpec | None = None,
    layout: bytes = b"",
    slot_bytes: int = SLOT_BYTES,
    lanes: int = 1,
    *,
    batch_size: int = 4,
    on_error: str = "raise",
    **parts: Any,
) -> Iterator[NodeWorkers]:
    """The workers of a program, which may be up by now."""
    spec = spec or StreamSpec("0" * 32, 7, "sequential", len(dataset), batch_size, on_error=on_error)
    workers = NodeWorkers(program_of(dataset, **parts), spec, layout, slot_bytes, lanes)
    try:
        yield workers
    finally:
        workers.close()


def fill(workers: NodeWorkers, step: int, *, lane: int = 0, kind: int = FILL_WHOLE, rows: int = 4) -> NodeAnswer:
    """Has a batch made, by the daemon's task of this number, into a slot that is the daemon's and none here."""
    return workers.fill(lane, (TASK, kind, 0, step, 0, rows, 1000), b"")


def batch_of(answer: NodeAnswer) -> Any:
    told = decode(answer.packet)
    assert isinstance(told, Filled), told
    assert answer.payload is not None
    return BatchReader().read(torch.frombuffer(answer.payload, dtype=torch.uint8).numpy())


# --- the same bytes ---


@pytest.mark.parametrize(
    ("kind", "dataset", "options"),
    [
        (FILL_ROWS, Dice(24), {}),
        (FILL_ROWS, Made(programs.numbered), {"drop_last": True}),
        (FILL_WHOLE, Dice(24), {"collate_fn": programs.as_lists}),
        (FILL_WHOLE, Made(programs.named), {}),
        (FILL_WHOLE, programs.Gathering(), {}),
    ],
    ids=["rows, drawn", "rows", "whole, drawn", "whole", "__getitems__"],
)
def test_a_batch_has_the_bytes_that_it_has_where_the_daemon_is(stage, kind, dataset, options):
    steps = (0, 2, 3)
    with stage.stream(dataset, **options) as stream:
        (worker,) = stream.start_workers(1)
        layout = stream.measure(worker).layout
        assert bool(layout) == (kind == FILL_ROWS)
        slot_bytes = stream.make_ring([worker]).header.slot_bytes
        expected = []
        for slot, step in enumerate(steps):
            row = (stream.fill_rows if layout else stream.fill_whole)(worker, step, slot)
            expected.append(bytes(stream.payload(slot))[: row[1]])
        spec = stream.spec
    parts = {name: value for name, value in options.items() if name == "collate_fn"}
    with workers_of(dataset, spec, layout, slot_bytes, **parts) as workers:
        answers = [fill(workers, step, kind=kind) for step in steps]
    assert [bytes(each.payload) for each in answers] == expected
    for answer, payload in zip(answers, expected):
        ((task, payload_bytes, _, samples),) = decode(answer.packet).tasks
        assert (task, payload_bytes, samples) == (TASK, len(payload), 4)


def test_each_lane_is_a_worker_and_several_are_asked_at_once():
    """More tasks than a lane has slots: the others wait for one."""
    with workers_of(Made(programs.numbered), lanes=2) as workers, ThreadPoolExecutor(12) as threads:
        tasks = [threads.submit(fill, workers, step, lane=lane) for step in range(6) for lane in range(2)]
        for number, task in enumerate(tasks):
            first = 4 * (number // 2)
            assert batch_of(task.result())[1].tolist() == list(range(first, first + 4))


def test_a_lane_s_worker_knows_its_place():
    with workers_of(Made(programs.who), lanes=2) as workers:
        workers.wait()
        for lane in range(2):
            assert batch_of(fill(workers, 0, lane=lane)).tolist() == [[lane, 2, 24]] * 4


# --- what is no batch ---


def test_a_sample_that_raises_is_told_as_of_the_daemon_s_task():
    with workers_of(Made(programs.broken)) as workers:
        answer = fill(workers, 1)
        told = decode(answer.packet)
        assert isinstance(told, FillFailed)
        assert (told.task, answer.payload) == (TASK, None)
        assert decode_exception(told.error).type_name == "KeyError"
        assert batch_of(fill(workers, 2)).tolist() == [8, 9, 10, 11], "the next batch is made"


def test_a_batch_that_does_not_fit_is_told_with_its_size():
    with workers_of(Made(programs.growing), collate_fn=torch.stack, slot_bytes=aligned_slot_bytes(4096)) as workers:
        answer = fill(workers, 1)
        told = decode(answer.packet)
        assert isinstance(told, Unfit)
        assert (told.task, answer.payload) == (TASK, None)
        assert told.payload_bytes > 16_000


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_batch_of_which_a_sample_is_bad_is_made_where_the_daemon_is(on_error):
    with workers_of(Made(programs.broken), on_error=on_error) as workers:
        answer = fill(workers, 1)
        spent = decode(answer.packet)
        assert isinstance(spent, Spent)
        assert spent.task == TASK
        assert "KeyError: 'label'" in spent.reason
        assert answer.payload is None
        assert batch_of(fill(workers, 2)).tolist() == [8, 9, 10, 11], "that of another task is fine"


# --- deaths ---


def test_the_task_of_a_worker_that_is_killed_is_spent_and_another_worker_comes(tmp_path):
    dataset = Halting(tmp_path / "begun")
    with workers_of(dataset, batch_size=1) as workers, ThreadPoolExecutor(1) as threads:
        (former,) = batch_of(fill(workers, 0, rows=1)).tolist()
        task = threads.submit(fill, workers, 1, rows=1)
        assert int(until(dataset.begun.read_text, "the worker has begun")) == former
        os.kill(former, signal.SIGKILL)
        answer = task.result(timeout=30)
        assert decode(answer.packet) == Spent(TASK)
        assert answer.payload is None
        (other,) = batch_of(fill(workers, 0, rows=1)).tolist()
        assert other != former


def test_a_worker_that_hangs_at_a_task_is_ended_for_that_task_alone(tmp_path):
    dataset = Halting(tmp_path / "begun")
    with workers_of(dataset, batch_size=1) as workers, ThreadPoolExecutor(1) as threads:
        (former,) = batch_of(fill(workers, 0, rows=1)).tolist()
        task = threads.submit(fill, workers, 1, rows=1)
        until(dataset.begun.read_text, "the worker has begun")
        workers.abandon(0, TASK + 1)
        workers.abandon(0, TASK)
        assert decode(task.result(timeout=30).packet) == Spent(TASK)
        (other,) = batch_of(fill(workers, 0, rows=1)).tolist()
        assert other != former
        workers.abandon(0, TASK)
        assert batch_of(fill(workers, 0, rows=1)).tolist() == [other], "it has no task"
    workers.abandon(0, TASK)


def test_workers_that_end_at_a_sample_are_started_again_each_time():
    with workers_of(Made(programs.leaves_at_four)) as workers:
        for _ in range(5):
            assert decode(fill(workers, 1).packet) == Spent(TASK)
        assert batch_of(fill(workers, 0)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        (programs.Unloadable("gone"), {}, "cannot be loaded here.*the index is not there: gone"),
        (Made(float), {"worker_init_fn": programs.init_fails}, "no database for worker 0"),
        (Made(float), {"worker_init_fn": init_leaves}, "end before they are ready: exited with 3"),
    ],
    ids=["program", "worker_init_fn", "leaves"],
)
def test_a_node_where_no_worker_comes_up_is_of_no_use(dataset, options, reason):
    with workers_of(dataset, **options) as workers:
        with pytest.raises(NodeError, match=reason):
            workers.wait()
        with pytest.raises(NodeError, match=reason):
            fill(workers, 0)


def test_tasks_that_wait_for_a_worker_that_never_comes_are_told_why():
    with workers_of(Made(float), worker_init_fn=init_leaves) as workers, ThreadPoolExecutor(1) as threads:
        task = threads.submit(fill, workers, 0)
        with pytest.raises(NodeError, match="exited with 3"):
            task.result(timeout=60)


def test_a_zygote_that_dies_takes_the_node_with_it():
    with workers_of(Made(programs.process_number)) as workers:
        worker = psutil.Process(batch_of(fill(workers, 0)).tolist()[0])
        worker.parent().kill()

        def broken() -> bool:
            try:
                fill(workers, 0)
            except NodeError as error:
                return "zygote" in str(error)
            return False

        until(broken, "the node is of no use")


# --- what is printed ---


def test_printed_lines_come_with_an_answer():
    with workers_of(Made(programs.talkative)) as workers:
        printed: list[str] = []

        def all_came() -> bool:
            # Of a pipe beside the socket: a line may be later than its batch.
            printed.extend(fill(workers, 0).lines)
            return {f"sample {index}" for index in range(4)} | {"to stderr"} <= set(printed)

        until(all_came, "its lines came")


def test_of_many_lines_so_many_are_kept_and_the_rest_counted(monkeypatch):
    monkeypatch.setattr(node_workers, "MOST_LINES", 3)
    with workers_of(Made(programs.talkative)) as workers:
        shown, left_out, made = 0, 0, 0

        def all_came() -> bool:
            nonlocal shown, left_out, made
            if made < 3:
                made += 1
                answer = fill(workers, 1)
            else:
                answer = fill(workers, 100)
            assert len(answer.lines) <= 3
            shown, left_out = shown + len(answer.lines), left_out + answer.left_out
            return shown + left_out == 24

        until(all_came, "each line was shown or counted")
        assert left_out > 0


# --- the end ---


def test_closing_leaves_no_process_and_no_descriptor():
    with workers_of(Made(float)) as workers:
        # What is made once for this process, the server of its interpreters say, is there from here on.
        workers.wait()
    before = open_fds(os.getpid())
    with workers_of(Made(programs.process_number), lanes=2) as workers:
        pids = [batch_of(fill(workers, 0, lane=lane)).tolist()[0] for lane in range(2)]
        tests = os.getpid()
        parents = [each.pid for each in psutil.Process(pids[0]).parents()]
        pids += parents[: parents.index(tests)]
        assert len(pids) == 4, "two workers, their zygote, and that of their environment"
        assert open_fds(tests) > before
        workers.close()
        assert [each for each in pids if not is_gone(each)] == []
        workers.close()
    assert open_fds(os.getpid()) == before


def test_what_is_under_way_at_the_end_is_told_so(tmp_path):
    dataset = Halting(tmp_path / "begun")
    with workers_of(dataset, batch_size=1) as workers, ThreadPoolExecutor(1) as threads:
        task = threads.submit(fill, workers, 1, rows=1)
        until(dataset.begun.read_text, "the worker has begun")
        workers.close()
        with pytest.raises(NodeError, match="closed"):
            task.result(timeout=30)


def test_what_is_asked_after_the_end_is_told_so():
    """A call of Ray's may come in another thread than close(): the descriptor that would wake the loop is another's by
    then."""
    with workers_of(Made(float)) as workers:
        workers.wait()
        workers.close()
        with pytest.raises(NodeError, match="closed"):
            fill(workers, 0)


def test_without_memory_for_its_ring_a_node_keeps_nothing(monkeypatch):
    """The program's descriptor has been taken over by then."""

    def full(*_):
        raise OSError(12, "Cannot allocate memory")

    fd = program_of(Made(float))
    before = open_fds(os.getpid())
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="Cannot allocate"):
        NodeWorkers(fd, StreamSpec("0" * 32, 7, "sequential", 24, 4), b"", SLOT_BYTES, 1)
    assert open_fds(os.getpid()) == before - 1
