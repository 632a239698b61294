"""A worker's note: 64 bytes that the daemon reads, also of the dead."""

from __future__ import annotations

import os
import struct

import pytest

from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.worker_status import (
    COLLATING,
    IDLE,
    LOADING,
    NO_WORKER_STATUS,
    PHASES,
    STACK_OFFSET,
    STARTING,
    STATUS_WORDS_BYTES,
    WorkerStatus,
    read_worker_status,
)
from prefetchd.workers.worker_status_writer import WorkerStatusWriter, map_worker_status
from tests.scenario.forked import forked


@pytest.fixture
def file():
    made = WorkerStatusFile()
    yield made
    made.close()


def what(note: WorkerStatus) -> WorkerStatus:
    """The note but for its time."""
    return WorkerStatus(note.task, note.phase, note.row, note.index, note.attempt)


def test_its_places_are_what_they_are():
    assert STATUS_WORDS_BYTES == 64
    note = read_worker_status(struct.pack("=7q", 7, LOADING, 3, 12_345_678_901, 2, 99, 1) + bytes(8))
    assert note == WorkerStatus(task=7, phase=LOADING, row=3, index=12_345_678_901, attempt=2, since_ns=99, damage=1)
    assert len(PHASES) == 9
    assert PHASES[COLLATING] == "collating"


def test_it_begins_with_nothing(file):
    assert file.read() == NO_WORKER_STATUS
    writer = map_worker_status(file.fd)
    assert what(file.read()) == what(writer.read()) == NO_WORKER_STATUS


def test_damage_stays_noted_whatever_follows(file):
    writer = map_worker_status(file.fd)
    writer.damage_found()
    writer.begin(3)
    writer.phase(IDLE)
    assert file.read().damage == 1


def test_what_the_worker_is_at_can_be_read_at_once(file):
    writer = map_worker_status(file.fd)
    said = []
    for step in (
        lambda: writer.phase(IDLE),
        lambda: writer.begin(12),
        lambda: writer.phase(LOADING),
        lambda: writer.load(0, 500),
        lambda: writer.load(1, 7),
        lambda: writer.attempt(2, 33),
        lambda: writer.attempt(0, 7),
        lambda: writer.phase(COLLATING),
        lambda: writer.phase(IDLE),
        lambda: writer.begin(13),
    ):
        step()
        said.append(what(file.read()))
    assert said == [
        WorkerStatus(0, IDLE),
        WorkerStatus(12, IDLE),
        WorkerStatus(12, LOADING),
        WorkerStatus(12, LOADING, 0, 500),
        WorkerStatus(12, LOADING, 1, 7),
        WorkerStatus(12, LOADING, 1, 33, 2),
        WorkerStatus(12, LOADING, 1, 7),
        WorkerStatus(12, COLLATING),
        WorkerStatus(12, IDLE),
        WorkerStatus(13, IDLE),
    ]


def test_its_time_goes_on(file):
    writer = map_worker_status(file.fd)
    before = file.read().since_ns
    writer.load(0, 1)
    after = file.read().since_ns
    assert after > before
    writer.attempt(1, 2)
    assert file.read().since_ns > after


def test_a_dead_worker_s_note_stays(file):
    def work():
        writer = map_worker_status(file.fd)
        writer.begin(5)
        writer.phase(LOADING)
        writer.load(2, 17)
        os._exit(9)

    pid, reading = forked(work)
    os.waitpid(pid, 0)
    os.close(reading)
    assert what(file.read()) == WorkerStatus(5, LOADING, 2, 17)


def test_without_memory_it_is_kept_apart():
    writer = WorkerStatusWriter()
    writer.phase(IDLE)
    assert what(writer.read()) == WorkerStatus(0, IDLE)
    assert what(WorkerStatusWriter().read()) == WorkerStatus(0, STARTING)


def test_what_follows_the_note_is_not_its_own(file):
    os.pwrite(file.fd, b"stack", STACK_OFFSET)
    map_worker_status(file.fd).load(1, 1)
    assert os.pread(file.fd, 10, STACK_OFFSET) == b"stack"
    assert STACK_OFFSET >= STATUS_WORDS_BYTES
