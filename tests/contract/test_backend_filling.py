"""What every Backend does with fill tasks: measured, filled by rows or whole, told what does not fit or fails."""

from __future__ import annotations

import pytest
import torch
import xxhash
from prefetchd_client.session.remote_errors import rebuild_exception

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.wire.messages import (
    COMPARE,
    DIGEST,
    FILL_ROWS,
    FILL_WHOLE,
    BadSamples,
    Compared,
    Digested,
    FillFailed,
    Measured,
    Unfit,
)
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.slot_layout import decode_row_layout
from tests.contract import programs
from tests.contract.backend_harness import HarnessedStream
from tests.contract.programs import Counted
from tests.scenario.datasets import Dice, Made, Numbers, equal
from tests.scenario.oracle import epoch_batches


@pytest.fixture
def calls(tmp_path):
    return tmp_path / "calls"


# --- comparing ---


def test_rows_that_differ_are_found_and_no_others(stage):
    with stage.stream(Made(programs.numbered)) as stream:
        (worker,) = stream.start_workers(1)
        layout = decode_row_layout(stream.measure(worker).layout)
        stream.make_ring([worker])
        stream.fill_rows(worker, 1, 0)

        def compare(first: int, end: int) -> tuple[bool, int]:
            (task,) = stream.assign(worker, (COMPARE, 0, 1, first, end, 0))
            answer = stream.answer(worker, task)
            assert isinstance(answer, Compared)
            return answer.is_equal, answer.row

        assert compare(0, 4) == (True, -1)
        numbers = layout.meta.storages[1]
        stream.ring.memory.batch(0)[numbers.offset + 2 * numbers.storage_bytes // 4] ^= 1
        assert [compare(row, row + 1) for row in range(4)] == [(True, -1), (True, -1), (False, 2), (True, -1)]
        assert compare(0, 4) == (False, 2)


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


def dealt(stream: HarnessedStream, workers: list[int], tasks: list[tuple[int, ...]]) -> list:
    """Deals the tasks to the workers in turn, each its own in one message. Their rows of Filled."""
    given = {worker: tasks[place :: len(workers)] for place, worker in enumerate(workers)}
    return [stream.answer(worker, task) for worker, mine in given.items() for task in stream.assign(worker, *mine)]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_rows_from_any_number_of_workers_make_the_same_bytes(stage, workers):
    """Batches of nine rows in tasks of two: each worker gets several tasks in one Fill."""
    dataset = Dice(45)
    with stage.stream(dataset, batch_size=9) as stream:
        numbers = stream.start_workers(workers)
        stream.measure(numbers[0])
        stream.make_ring(numbers)
        tasks = [(FILL_ROWS, 0, step, first, min(first + 2, 9), step) for step in range(5) for first in range(0, 9, 2)]
        rows = dealt(stream, numbers, tasks)
        assert {row[1] for row in rows} == {stream.measure_told.payload_bytes}
        assert sum(row[3] for row in rows) == 45, "samples"
        expected = epoch_batches(dataset, 0, batch_size=9, seed=7)
        assert equal([stream.batch(step) for step in range(5)], expected)


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_one_worker_fills_are_the_same_by_any(stage, workers):
    """All of a batch's rows at once; the last one is short."""
    dataset = Dice(42)
    with stage.stream(dataset, batch_size=9) as stream:
        numbers = stream.start_workers(workers)
        stream.measure(numbers[0])
        stream.make_ring(numbers)
        tasks = [(FILL_ROWS, 0, step, 0, min(9, 42 - 9 * step), step) for step in range(5)]
        assert sum(row[3] for row in dealt(stream, numbers, tasks)) == 42, "samples"
        assert equal([stream.batch(step) for step in range(5)], epoch_batches(dataset, 0, batch_size=9, seed=7))


def test_samples_that_hide_their_draws_are_seeded_as_well(stage):
    """After many that drew nothing, when seeding is put off until somebody draws."""
    dataset = Made(programs.in_brackets, 64)
    with stage.stream(dataset, batch_size=8) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        for task in stream.assign(worker, *[(FILL_ROWS, 0, step, 0, 8, step) for step in range(8)]):
            stream.answer(worker, task)
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


def test_a_batch_that_is_too_large_is_told_with_its_size(stage):
    with stage.stream(Made(programs.growing), collate_fn=torch.stack) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        unfit = stream.fill_whole(worker, step=1, slot=0)
        assert isinstance(unfit, Unfit)
        assert unfit.payload_bytes > 16_000
        stream.fill_whole(worker, step=0, slot=1)
        assert equal(stream.batch(1), torch.stack([programs.growing(index) for index in range(4)]))


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
            assert told.location == "dataset[6], epoch 0, step 1"
            assert "in broken" in told.traceback
            error = rebuild_exception(failed.error)
            assert type(error) is KeyError
            assert error.args == ("label",)
        stream.answer(worker, fine)
        assert stream.batch(2).tolist() == [8, 9, 10, 11]


def test_bad_samples_are_told_before_the_answer(stage):
    with stage.stream(Made(programs.broken), on_error="substitute") as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        (task,) = stream.assign(worker, (FILL_ROWS, 0, 1, 0, 4, 0))
        answer = stream.answer(worker, task)
        assert isinstance(answer, BadSamples)
        assert answer.samples == ((2, 0, 6),)
        assert b"dataset[6] (epoch 0, step 1, row 2) gives way to dataset[" in answer.texts[0]
        stage.until(lambda: stream.has_filled(worker, task))
        batch = stream.batch(0).tolist()
        assert batch[:2] + batch[3:] == [4, 5, 7]


def test_a_sample_that_is_left_out_makes_its_batch_a_whole_one(stage):
    with stage.stream(Made(programs.broken), on_error="skip") as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        answer = stream.fill_rows(worker, 1, 0)
        assert isinstance(answer, Unfit)
        assert answer.payload_bytes == 0
        assert "dataset[6]" in answer.reason
        (task,) = stream.assign(worker, (FILL_WHOLE, 0, 1, 0, 4, 1))
        stage.until(lambda: stream.has_filled(worker, task))
        assert stream.batch(1).tolist() == [4, 5, 7]


@pytest.mark.parametrize("kind", [FILL_ROWS, FILL_WHOLE])
def test_samples_that_end_their_workers_are_not_asked_for(stage, calls, kind):
    dataset = Counted(programs.numbered, calls)
    with stage.stream(dataset, on_error="substitute") as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        before = dataset.count
        (task,) = stream.assign(worker, (kind, 0, 1, 0, 4, 0, 1, 0, 1, 1))
        stage.until(lambda: stream.has_filled(worker, task))
        assert dataset.count - before == 4, "three rows, and the second substitute of row 1"
        expected = BatchPlan(stream.spec).substitute(0, 5, 2)
        assert stream.batch(0)[1].tolist() == [4, expected, 6, 7]


# --- digests ---


def digest_of(stream: HarnessedStream, worker: int, slot: int, payload_bytes: int) -> int:
    (task,) = stream.assign(worker, (DIGEST, 0, 0, 0, payload_bytes, slot))
    told = stream.answer(worker, task)
    assert isinstance(told, Digested)
    return told.digest


def test_a_digest_is_that_of_the_payload_and_of_nothing_behind_it(stage):
    with stage.stream(Made(programs.numbered)) as stream:
        (worker,) = stream.start_workers(1)
        payload_bytes = stream.measure(worker).payload_bytes
        stream.make_ring([worker])
        stream.fill_rows(worker, 0, 2)
        before = digest_of(stream, worker, 2, payload_bytes)
        payload = bytes(stream.payload(2))[:payload_bytes]
        assert before == xxhash.xxh3_64_intdigest(payload)
        memory = stream.ring.memory.batch(2)
        memory[payload_bytes] ^= 1
        assert digest_of(stream, worker, 2, payload_bytes) == before
        memory[payload_bytes - 1] ^= 1
        assert digest_of(stream, worker, 2, payload_bytes) != before


def test_a_digest_of_a_batch_in_several_slots(stage):
    with stage.stream(Made(programs.growing), collate_fn=torch.stack) as stream:
        (worker,) = stream.start_workers(1)
        slot_bytes = stream.measure(worker).payload_bytes
        stream.make_ring([worker], slot_bytes=slot_bytes)
        stream.chain(6, 1, 3)
        memory = stream.ring.memory.batch(6, 3)
        memory[:] = bytes(range(256)) * (len(memory) // 256)
        payload_bytes = len(memory) - 5
        expected = xxhash.xxh3_64_intdigest(bytes(memory)[:payload_bytes])
        assert digest_of(stream, worker, 6, payload_bytes) == expected
