"""What every Backend promises (workers.backend), with real programs, real rings and a real loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
import torch
from prefetchd_client.remote_errors import rebuild_exception

from prefetchd.wire.messages import FILL_ROWS, FILL_WHOLE, FillFailed, Measured, Unfit
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.slot_layout import decode_row_layout
from prefetchd.workers.inline_backend import InlineBackend
from prefetchd.workers.process_backend import ProcessBackend
from tests.contract import programs
from tests.contract.backend_harness import HarnessedStream, Stage, wait_for_end
from tests.contract.programs import Counted
from tests.scenario.datasets import Dice, Made, Numbers, equal
from tests.scenario.oracle import epoch_batches

BACKENDS = {"process": ProcessBackend, "inline": InlineBackend}


@pytest.fixture(scope="module", params=BACKENDS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(BACKENDS[request.param], runtime_paths(tmp_path_factory.mktemp("backend") / "d.sock"))
    yield made
    made.close()


@pytest.fixture
def process_stage(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    if "inline" in request.node.callspec.id:
        pytest.skip("there is no process to be killed")
    return stage


@pytest.fixture
def calls(tmp_path):
    return tmp_path / "calls"


# --- beginning ---


def test_a_stream_is_loaded_and_its_workers_are_ready(stage):
    with stage.stream(Numbers()) as stream:
        assert stage.event("stream_loaded", stream.number)[2] == ""
        assert len(stream.start_workers(3)) == 3


def test_a_program_that_does_not_load_is_told_with_the_users_exception(stage):
    with stage.stream(programs.Unloadable("index.json")) as stream:
        _, _, message, error = stage.event("load_failed", stream.number)
        assert "LookupError: the index is not there: index.json" in message
        told = decode_exception(error)
        assert (told.type_name, told.place) == ("LookupError", "loading the program")
        assert "in _fail" in told.traceback
        rebuilt = rebuild_exception(error)
        assert type(rebuilt) is LookupError
        assert str(rebuilt) == "the index is not there: index.json"
        assert not stage.has_told("stream_loaded", stream.number)


def test_a_program_that_exits_when_it_is_loaded_is_told_too(stage):
    with stage.stream(programs.Unloadable("exit")) as stream:
        assert "SystemExit: nothing to train on" in stage.event("load_failed", stream.number)[2]


def test_worker_init_fn_runs_in_each_worker_before_it_is_ready(stage):
    with stage.stream(Numbers(), worker_init_fn=programs.init_speaks) as stream:
        workers = stream.start_workers(2)
        for place, worker in enumerate(workers):
            assert stage.event("output", stream.number, worker)[3] == f"worker_init_fn of {place}"


def test_a_worker_init_fn_that_raises_is_told_and_ends_the_worker(stage):
    with stage.stream(Numbers(), worker_init_fn=programs.init_fails) as stream:
        stream.loaded()
        stage.call("start_worker", stream.number, worker := 1_000_001, 0, 1)
        _, _, message, error = stage.event("load_failed", stream.number)
        assert message == "worker_init_fn(0): ConnectionError: no database for worker 0"
        assert type(rebuild_exception(error)) is ConnectionError
        stage.event("worker_died", worker)
        assert not stage.has_told("worker_ready", worker)


def test_a_worker_of_a_stream_that_is_not_there_dies(stage):
    stage.call("start_worker", 1_000_002, 1_000_003, 0, 1)
    stage.event("worker_died", 1_000_003)
    stage.call("drop_stream", 1_000_002)


def test_get_worker_info_tells_place_number_and_dataset(stage):
    with stage.stream(Made(programs.who, 12)) as stream:
        workers = stream.start_workers(3)
        stream.measure(workers[0])
        stream.make_ring(workers)
        for place, worker in enumerate(workers):
            stream.fill_rows(worker, step=1, slot=place)
            assert equal(stream.batch(place), torch.tensor([[place, 3, 12]] * 4))


def test_a_worker_has_its_dataset_to_itself(stage):
    with stage.stream(programs.Remembering()) as stream:
        workers = stream.start_workers(2)
        stream.measure(workers[0], step=5)
        stream.make_ring(workers)
        for slot, worker in enumerate(workers):
            stream.fill_rows(worker, step=1, slot=slot)
        assert stream.batch(0).tolist() == [1, 2, 3, 4]
        assert stream.batch(1).tolist() == [0, 1, 2, 3]


# --- measuring ---


def test_samples_of_tensors_and_numbers_are_measured_for_rows(stage):
    with stage.stream(Made(programs.numbered)) as stream:
        (worker,) = stream.start_workers(1)
        told = stream.measure(worker)
        layout = decode_row_layout(told.layout)
        assert (layout.rows, layout.meta.payload_bytes) == (4, told.payload_bytes)
        assert [view.shape for view in layout.meta.views] == [(4, 3), (4,)]


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": Made(programs.named)},
        {"dataset": Made(programs.numbered), "collate_fn": programs.as_lists},
        {"dataset": programs.Gathering()},
        {"dataset": Made(programs.numbered), "batch_size": 0},
    ],
    ids=["strings", "collate_fn", "__getitems__", "no batches"],
)
def test_other_batches_are_measured_and_filled_whole(stage, options):
    with stage.stream(**options) as stream:
        (worker,) = stream.start_workers(1)
        told = stream.measure(worker)
        assert told.layout == b""
        stream.make_ring([worker])
        for slot, step in enumerate((0, 2)):
            row = stream.fill_whole(worker, step, slot)
            assert row[1] == told.payload_bytes, "batches of these have equal sizes"
            assert equal(stream.batch(slot), expected_whole(stream, options, step))


def expected_whole(stream: HarnessedStream, options: dict, step: int):
    dataset, size = options["dataset"], stream.spec.batch_size
    if not size:
        return torch.utils.data.default_convert(dataset[step])
    if isinstance(dataset, programs.Gathering):
        return torch.tensor([[index, size] for index in range(step * size, step * size + size)])
    samples = [dataset[index] for index in range(step * size, step * size + size)]
    if "collate_fn" in options:
        return options["collate_fn"](samples)
    return torch.utils.data.default_collate(samples)


def test_what_was_made_to_measure_is_not_made_again(stage, calls):
    for make, step_rows in ((programs.numbered, 1), (programs.named, 4)):
        calls.unlink(missing_ok=True)
        with stage.stream(dataset := Counted(make, calls)) as stream:
            (worker,) = stream.start_workers(1)
            stream.measure(worker)
            assert dataset.count == step_rows
            stream.make_ring([worker])
            (stream.fill_rows if step_rows == 1 else stream.fill_whole)(worker, 0, 0)
            assert dataset.count == 4


# --- filling ---


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_rows_from_any_number_of_workers_make_the_same_bytes(stage, workers):
    """Batches of nine rows in tasks of two: each worker gets several tasks in one Fill."""
    dataset = Dice(45)
    with stage.stream(dataset, batch_size=9) as stream:
        numbers = stream.start_workers(workers)
        stream.measure(numbers[0])
        stream.make_ring(numbers)
        tasks = [(FILL_ROWS, 0, step, first, min(first + 2, 9), step) for step in range(5) for first in range(0, 9, 2)]
        given = {worker: tasks[place::workers] for place, worker in enumerate(numbers)}
        rows = [stream.answer(worker, task) for worker, mine in given.items() for task in stream.assign(worker, *mine)]
        assert {row[1] for row in rows} == {stream.measure_told.payload_bytes}
        assert sum(row[3] for row in rows) == 45, "samples"
        expected = epoch_batches(dataset, 0, batch_size=9, seed=7)
        assert equal([stream.batch(step) for step in range(5)], expected)


def test_samples_that_hide_their_draws_are_seeded_as_well(stage):
    """After many that drew nothing, when seeding is put off until somebody draws."""
    dataset = Made(programs.in_brackets, 64)
    with stage.stream(dataset, batch_size=8) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        tasks = stream.assign(worker, *[(FILL_ROWS, 0, step, 0, 8, step) for step in range(8)])
        stream.answer(worker, tasks[-1])
        assert equal([stream.batch(step) for step in range(8)], epoch_batches(dataset, 0, batch_size=8, seed=7))


def test_the_last_batch_may_be_short(stage):
    dataset = Numbers(10)
    with stage.stream(dataset) as stream:
        workers = stream.start_workers(2)
        stream.measure(workers[0])
        stream.make_ring(workers)
        for place, worker in enumerate(workers):
            (task,) = stream.assign(worker, (FILL_ROWS, 0, 2, place, place + 1, 0))
            stream.answer(worker, task)
        assert equal(stream.batch(0), epoch_batches(dataset, 0, batch_size=4)[2])


def test_answers_come_in_the_order_of_the_tasks(stage):
    with stage.stream(Numbers(64)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        tasks = stream.assign(worker, *[(FILL_ROWS, 0, step, 0, 4, step % 8) for step in range(16)])
        stream.answer(worker, tasks[-1])
        told = [
            row[0]
            for event, *arguments in stage.told.events
            if event == "worker_message" and arguments[0] == worker and not isinstance(arguments[1], Measured)
            for row in arguments[1].tasks
        ]
        assert told == tasks


# --- what does not fit ---


def test_a_row_that_deviates_is_unfit_without_a_size_and_the_batch_is_made_whole(stage):
    with stage.stream(Made(programs.deviating)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker], slot_bytes=1 << 14)
        unfit = stream.fill_rows(worker, step=1, slot=0)
        assert isinstance(unfit, Unfit)
        assert unfit.payload_bytes == 0
        assert unfit.reason
        stream.fill_whole(worker, step=1, slot=0)
        # default_collate stacks what torch can promote.
        assert equal(stream.batch(0), torch.utils.data.default_collate([programs.deviating(i) for i in range(4, 8)]))
        stream.fill_rows(worker, step=2, slot=1)
        assert stream.batch(1)[:, 0].tolist() == [8, 9, 10, 11], "the next batch goes by rows again"


def test_a_batch_that_is_too_large_is_kept_until_it_gets_more_slots(stage, calls):
    dataset = Counted(programs.growing, calls)
    with stage.stream(dataset, collate_fn=torch.stack) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        ring = stream.make_ring([worker])
        unfit = stream.fill_whole(worker, step=1, slot=0)
        assert isinstance(unfit, Unfit)
        assert unfit.payload_bytes > 16_000 > ring.header.slot_bytes
        made = dataset.count
        stream.chain(5, 1, 7, 2)
        row = stream.fill_whole(worker, step=1, slot=5)
        assert row[1] == unfit.payload_bytes
        assert dataset.count == made, "it was not computed again"
        assert equal(stream.batch(5, span=4), torch.stack([programs.growing(index) for index in range(4, 8)]))


def test_several_batches_that_are_too_large_are_kept_side_by_side(stage, calls):
    dataset = Counted(programs.growing, calls)
    with stage.stream(dataset, collate_fn=torch.stack) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        tasks = stream.assign(worker, (FILL_WHOLE, 0, 1, 0, 4, 0), (FILL_WHOLE, 0, 2, 0, 4, 1))
        assert all(isinstance(stream.answer(worker, task), Unfit) for task in tasks)
        made = dataset.count
        stream.chain(0, 1, 2, 3)
        stream.chain(4, 5, 6, 7)
        for step in (1, 2):
            stream.fill_whole(worker, step, slot=4 * step - 4)
            expected = torch.stack([programs.growing(index) for index in range(4 * step, 4 * step + 4)])
            assert equal(stream.batch(4 * step - 4, span=4), expected)
        assert dataset.count == made


def test_a_sample_that_raises_fails_its_task_and_no_other(stage):
    with stage.stream(Made(programs.broken)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        tasks = [(FILL_ROWS, 0, 1, 0, 4, 0), (FILL_WHOLE, 0, 1, 0, 4, 1), (FILL_ROWS, 0, 2, 0, 4, 2)]
        *failing, fine = stream.assign(worker, *tasks)
        for task in failing:
            failed = stream.answer(worker, task)
            assert isinstance(failed, FillFailed)
            told = decode_exception(failed.error)
            assert (told.type_name, told.message) == ("KeyError", "'label'")
            assert told.place == "dataset[6], epoch 0, step 1"
            assert "in broken" in told.traceback
            error = rebuild_exception(failed.error)
            assert type(error) is KeyError
            assert error.args == ("label",)
        stream.answer(worker, fine)
        assert stream.batch(2).tolist() == [8, 9, 10, 11]


# --- what the user's code prints ---


def test_what_a_worker_prints_is_told_in_whole_lines(stage):
    with stage.stream(Made(programs.talkative)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker, step=4)

        def lines() -> list[str]:
            told = [each[3] for each in stage.told.events if each[:3] == ("output", stream.number, worker)]
            return "\n".join(told).split("\n")

        stage.until(lambda: len(lines()) >= 2)
        assert sorted(lines()) == ["sample 16", "to stderr"]


# --- endings ---


def test_a_worker_that_is_stopped_answers_its_tasks_first(stage):
    with stage.stream(Numbers(64)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        tasks = stream.assign(worker, *[(FILL_ROWS, 0, step, 0, 4, step) for step in range(4)])
        stage.call("stop_worker", worker, kill=False)
        stage.event("worker_died", worker)
        for task in tasks:
            assert stream.answer(worker, task)[0] == task
        assert stage.told.events[-1] == ("worker_died", worker, "exited with 0")


def test_a_worker_that_is_killed_dies_and_the_others_go_on(stage):
    with stage.stream(Numbers(64)) as stream:
        killed, other = stream.start_workers(2)
        stream.measure(other)
        stream.make_ring([other])
        stage.call("stop_worker", killed, kill=True)
        assert "SIGKILL" in stage.event("worker_died", killed)[2]
        stream.fill_rows(other, step=3, slot=0)
        assert stream.batch(0)[1].tolist() == [12, 13, 14, 15]
        stage.call("assign", killed, _fill_nothing())
        stage.call("stop_worker", killed, kill=True)
        assert sum(each[:2] == ("worker_died", killed) for each in stage.told.events) == 1


@pytest.mark.parametrize("kill", [False, True])
def test_a_worker_that_is_stopped_before_it_is_ready_dies(stage, kill):
    with stage.stream(Numbers()) as stream:
        stream.loaded()
        stage.call("start_worker", stream.number, worker := 1_000_010 + kill, 0, 1)
        stage.call("stop_worker", worker, kill=kill)
        stage.event("worker_died", worker)


def test_a_worker_that_is_at_an_endless_task_can_be_killed(process_stage):
    stage = process_stage
    with stage.stream(Made(programs.endless)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.assign(worker, (FILL_ROWS, 0, 1, 0, 4, 0))
        stage.call("stop_worker", worker, kill=True)
        stage.event("worker_died", worker, "killed by SIGKILL")


def test_a_worker_that_something_else_kills_is_told_to_have_died(process_stage):
    stage = process_stage
    with stage.stream(Made(programs.process_number)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.fill_rows(worker, step=1, slot=0)
        pid = int(stream.batch(0)[0])
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)
        stage.event("worker_died", worker, "killed by SIGKILL")
        assert not psutil.pid_exists(pid), "its death is certain, and it was reaped"


def test_a_zygote_that_dies_takes_its_workers_along_and_is_told(process_stage):
    stage = process_stage
    with stage.stream(Made(programs.process_number)) as stream:
        workers = stream.start_workers(2)
        stream.measure(workers[0])
        stream.make_ring(workers)
        stream.fill_rows(workers[0], step=1, slot=0)
        zygote = psutil.Process(int(stream.batch(0)[0])).parent()
        zygote.kill()
        for worker in workers:
            stage.event("worker_died", worker)
        stage.event("host_died", stream.number)


def test_after_a_stream_was_dropped_nothing_is_told_of_it(stage):
    """Dropped at each of its stages; another stream's whole life afterwards shows that all there was has come."""
    before = stage.stream(Numbers())
    stage.call("drop_stream", before.number)
    loading = stage.stream(Numbers()).loaded()
    stage.call("start_worker", loading.number, 1_000_020, 0, 1)
    stage.call("drop_stream", loading.number)
    filling = stage.stream(Made(programs.talkative))
    worker = filling.start_workers(1)[0]
    filling.assign(worker, *[(0, 0, step, 0, 4, 0) for step in range(8)])
    stage.call("stop_worker", worker, kill=False)
    stage.call("drop_stream", filling.number)
    unknown = 1_000_021
    stage.call("start_worker", unknown, 1_000_022, 0, 1)
    stage.call("drop_stream", unknown)
    told = len(stage.told.events)

    with stage.stream(Numbers()) as other:
        (alive,) = other.start_workers(1)
        other.measure(alive)
        stage.call("stop_worker", alive, kill=False)
        stage.event("worker_died", alive)
    for event, number, *rest in stage.told.events[told:]:
        assert number in (other.number, alive), (event, number, rest)


def test_all_calls_about_what_is_gone_are_harmless(stage):
    with stage.stream(Numbers()) as stream:
        (worker,) = stream.start_workers(1)
    told = len(stage.told.events)
    stage.call("drop_stream", stream.number)
    stage.call("stop_worker", worker, kill=True)
    stage.call("stop_worker", worker, kill=False)
    stage.call("assign", worker, _fill_nothing())
    reading, writing = os.pipe()
    stage.call("lend_ring", worker, reading, b"")
    os.close(reading)
    os.close(writing)
    stage.call("retire_idle", 0.0)
    assert len(stage.told.events) == told


# --- processes ---


def test_workers_of_a_program_that_starts_threads_are_executed_anew(process_stage):
    stage = process_stage
    with stage.stream(programs.StartsThread()) as stream:
        assert "imports started 1 threads" in stage.event("stream_loaded", stream.number)[2]
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.fill_rows(worker, step=1, slot=0)
        assert stream.batch(0).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("kind", BACKENDS)
def test_close_leaves_no_process_and_tells_nothing(kind, tmp_path):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    stage = Stage(BACKENDS[kind], runtime_paths(tmp_path / "d.sock"))
    try:
        stream = stage.stream(Made(programs.endless))
        (worker,) = stream.start_workers(1)
        stream.assign(worker, (0, 0, 1, 0, 4, 0)) if kind == "process" else None
        # One that is only being started, and one that is only being loaded.
        stage.call("start_worker", stream.number, 1_000_030, 0, 1)
        stage.stream(Numbers())
        made = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
        assert len(made) >= (3 if kind == "process" else 0)
        pidfds = [os.pidfd_open(process.pid) for process in made]
        told = len(stage.told.events)
    finally:
        stage.close()
    wait_for_end(pidfds)
    assert len(stage.told.events) == told
    left = {process.pid for process in psutil.Process().children(recursive=True)}
    assert left <= before, "not even a zombie"


def _fill_nothing():
    from prefetchd.wire.messages import Fill

    return Fill(((1_000_099, FILL_WHOLE, 0, 0, 0, 1, 0),))
