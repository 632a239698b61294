"""Who loads which row of a batch that one worker collates and others help with, and how long anybody helps."""

from __future__ import annotations

import time

import pytest

from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.worker_status import COLLATING, IDLE, LOADING
from prefetchd.workers import helped_samples
from prefetchd.workers.helped_samples import SLOW_ROW_S, STRETCH_S, HelpedSamples, help_owner
from prefetchd.workers.sample_codec import encode_sample
from prefetchd.workers.samples import BadSample
from prefetchd.workers.shared_samples import SharedSamples
from prefetchd.workers.user_code import UserCodeError
from prefetchd.workers.worker_status_writer import map_worker_status

TASK = 7
ROWS = 40


class Rows:
    """A dataset's rows, each of which takes `row_s`; `loaded` has those that were asked for."""

    def __init__(self, row_s: float = 0.0, broken: int = -1) -> None:
        self.row_s, self.broken = row_s, broken
        self.loaded: list[int] = []

    def __call__(self, first: int, end: int):
        for row in range(first, end):
            self.loaded.append(row)
            time.sleep(self.row_s)
            if row == self.broken:
                raise UserCodeError(ValueError("broken"))
            yield row, f"sample {row}"

    def take_bad(self) -> list[BadSample]:
        return []


@pytest.fixture
def status():
    """That of an owner which is at its first sample for long."""
    file = WorkerStatusFile()
    writer = map_worker_status(file.fd)
    writer.begin(TASK)
    writer.phase(LOADING)
    writer.load(0, 0)
    yield file
    file.close()


@pytest.fixture
def shared(status):
    found = SharedSamples(status.fd)
    yield found
    found.close()


def helped(rows: Rows, shared: SharedSamples, task: int = TASK, count: int = ROWS) -> tuple[int, bool]:
    return help_owner(rows, count, rows, shared, task)


def test_a_helper_begins_at_the_end(shared):
    rows = Rows(2 * SLOW_ROW_S)
    assert helped(rows, shared, count=4) == (4, True)
    assert rows.loaded == [3, 2, 1, 0]
    assert shared.has(3, TASK)


def test_nobody_helps_with_samples_that_take_no_time(shared, monkeypatch):
    # By a clock that samples alone advance: all else may take longer than they do where the machine is busy.
    slept_s = [0.0]
    monkeypatch.setattr(helped_samples.time, "sleep", slept_s.append)
    monkeypatch.setattr(helped_samples.time, "monotonic", lambda: sum(slept_s))
    rows = Rows(SLOW_ROW_S / 10)
    made, of_use = helped(rows, shared, count=1000)
    assert of_use, "others may take longer"
    assert STRETCH_S / rows.row_s <= made <= STRETCH_S / rows.row_s + 1


def test_rows_that_others_have_are_left_to_them(status, shared):
    other = SharedSamples(status.fd)
    assert other.claim(2)
    rows = Rows(2 * SLOW_ROW_S)
    assert helped(rows, shared, count=4) == (3, True)
    assert rows.loaded == [3, 1, 0]
    other.close()


def test_nothing_is_loaded_twice_where_the_owner_s_samples_take_no_time(status, shared, monkeypatch):
    writer = map_worker_status(status.fd)
    # None of its samples takes that long, and it has all of them by the helper's second look.
    monkeypatch.setattr(helped_samples, "SLOW_ROW_S", 3600.0)
    monkeypatch.setattr(helped_samples.time, "sleep", lambda seconds: writer.phase(COLLATING))
    rows = Rows()
    assert helped(rows, shared) == (0, True)
    assert rows.loaded == []


@pytest.mark.parametrize("phase", [IDLE, COLLATING])
def test_an_owner_that_loads_nothing_is_not_helped(status, shared, phase):
    map_worker_status(status.fd).phase(phase)
    rows = Rows()
    assert helped(rows, shared) == (0, True)
    assert rows.loaded == []


def test_a_helper_ends_with_the_task(shared):
    rows = Rows()
    assert helped(rows, shared, task=TASK + 1) == (0, True)
    assert rows.loaded == []


def test_what_raises_is_the_owner_s(shared):
    rows = Rows(2 * SLOW_ROW_S, broken=2)
    assert helped(rows, shared, count=4) == (3, True)
    assert not shared.has(2, TASK)


def test_the_owner_takes_what_is_there_and_loads_the_rest(status, shared):
    other = SharedSamples(status.fd)
    for row in (3, 4):
        other.put(row, TASK, encode_sample(f"of another {row}"))
    rows = Rows(2 * SLOW_ROW_S)
    found = HelpedSamples(map_worker_status(status.fd), shared).load(6, rows)
    other.close()
    assert found == [
        *((row, f"sample {row}") for row in (0, 1, 2)),
        *((row, f"of another {row}") for row in (3, 4)),
        (5, "sample 5"),
    ]
    assert rows.loaded == [0, 1, 2, 5]
    assert not shared.has(3, TASK), "their memory is given up"
