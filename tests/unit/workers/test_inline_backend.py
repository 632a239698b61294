"""The backend without processes: one request a turn, in one order, and nothing of this process is changed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import posix_ipc
import pytest
import torch
from prefetchd_client.program_pickle import pickle_program, write_program
from torch.utils.data import get_worker_info

from prefetchd.wire.messages import MEASURE, Fill, Measured
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.surroundings import current_environment
from prefetchd.workers.inline_backend import InlineBackend


class Turns:
    """A Watcher whose turns are taken one by one."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        raise AssertionError("there is nothing to watch")

    unwatch = watch  # type: ignore[assignment]

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert delay_s == 0
        self.due.append(callback)

    def take(self, count: int = 1000) -> int:
        """Takes turns until none is due; how many it took."""
        for taken in range(count):
            if not self.due:
                return taken
            self.due.pop(0)()
        return count


class Told:
    """BackendEvents, written down; `answers` are callables that an event calls when it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.answers: dict[str, Callable[[], None]] = {}

    def __getattr__(self, event: str) -> Callable[..., None]:
        def write_down(*arguments: Any) -> None:
            self.events.append((event, *arguments))
            if event in self.answers:
                self.answers.pop(event)()

        return write_down

    @property
    def names(self) -> list[str]:
        return [each[0] for each in self.events]


class Setup:
    def __init__(self, program_fd: int) -> None:
        self.turns = Turns()
        self.told = Told()
        self.backend = InlineBackend(self.turns, self.told)
        self.program_fd = program_fd
        self.spec = StreamSpec("0" * 32, seed=7, order="sequential", length=40, batch_size=4)

    def start(self, *workers: int, stream: int = 1) -> None:
        self.backend.start_stream(stream, self.program_fd, self.spec)
        for place, worker in enumerate(workers):
            self.backend.start_worker(stream, worker, place, len(workers))

    def measure(self, worker: int, *steps: int) -> None:
        self.backend.assign(worker, Fill(tuple((step, MEASURE, 0, step, 0, 4, 0) for step in steps)))

    def measured(self) -> list[tuple[int, int]]:
        """(worker, task) of the answers, in order."""
        return [(each[1], each[2].task) for each in self.told.events if each[0] == "worker_message"]


class Noisy:
    """Draws, prints, and looks at who asks."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        print("item", index)
        assert get_worker_info() is not None
        return torch.rand(2), np.random.rand(), random.random()


@pytest.fixture
def setup(tmp_path):
    parts = pickle_program({"dataset": Noisy()})
    name, fd, _ = write_program(runtime_paths(tmp_path / "d.sock"), current_environment(), *parts)
    posix_ipc.unlink_shared_memory(name)
    made = Setup(fd)
    yield made
    made.backend.close()
    os.close(fd)


def test_nothing_happens_within_a_call_and_one_request_is_carried_out_a_turn(setup):
    setup.start(2, 3)
    setup.measure(2, 0, 1)
    assert setup.told.events == []
    for events in (["stream_loaded"], ["worker_ready"], ["worker_ready"], ["output", "worker_message"]):
        before = len(setup.told.events)
        assert len(setup.turns.due) == 1
        setup.turns.take(1)
        assert setup.told.names[before:] == events


def test_two_runs_tell_the_same_in_the_same_order(setup):
    def run() -> list[tuple[Any, ...]]:
        again = Setup(setup.program_fd)
        again.start(2, 3)
        again.measure(3, 4, 1)
        again.measure(2, 2)
        again.backend.stop_worker(2, kill=False)
        again.measure(3, 3)
        again.turns.take()
        again.backend.close()
        # A worker's last note has a time in it.
        return [each[:3] if each[0] == "worker_died" else each for each in again.told.events]

    first = run()
    assert run() == first
    told = [(each[1], each[2].task) for each in first if each[0] == "worker_message"]
    assert told == [(3, 4), (3, 1), (2, 2), (3, 3)], "in the order in which they were asked for"


def test_a_killed_worker_does_none_of_its_tasks_and_a_stopped_one_all(setup):
    setup.start(2, 3)
    setup.turns.take()
    setup.measure(2, 0, 1)
    setup.measure(3, 2, 3)
    setup.backend.stop_worker(2, kill=True)
    setup.backend.stop_worker(3, kill=False)
    setup.measure(3, 4)
    setup.turns.take()
    assert setup.measured() == [(3, 2), (3, 3)]
    died = [each[:3] for each in setup.told.events if each[0] == "worker_died"]
    assert died == [("worker_died", 2, "killed by SIGKILL"), ("worker_died", 3, "exited with 0")]


@pytest.mark.parametrize("event", ["stream_loaded", "worker_ready", "output", "worker_message"])
def test_a_stream_may_be_dropped_by_whoever_is_told_something_of_it(setup, event):
    setup.told.answers[event] = lambda: setup.backend.drop_stream(1)
    setup.start(2)
    setup.measure(2, 0, 1)
    setup.turns.take()
    assert setup.told.names[-1] == event
    assert setup.turns.due == []


def test_requests_that_an_event_makes_come_after_those_that_wait(setup):
    setup.told.answers["worker_message"] = lambda: setup.measure(2, 9)
    setup.start(2)
    setup.measure(2, 0, 1)
    setup.turns.take()
    assert setup.measured() == [(2, 0), (2, 1), (2, 9)]


def test_this_process_s_generators_output_and_worker_info_are_left_alone(setup, capfd):
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    setup.start(2)
    setup.measure(2, 0)
    setup.turns.take()
    assert isinstance(setup.told.events[-1][2], Measured)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    assert get_worker_info() is None
    assert capfd.readouterr() == ("", "")
    assert ("output", 1, 2, "item 0") in setup.told.events
    torch.seed()


def test_it_keeps_neither_descriptors_nor_requests_when_it_is_closed(setup):
    before = len(os.listdir("/proc/self/fd"))
    setup.start(2, 3)
    setup.turns.take()
    setup.measure(2, 0, 1)
    setup.backend.start_worker(77, 5, 0, 1)
    told = len(setup.told.events)
    setup.backend.close()
    setup.turns.take()
    assert len(setup.told.events) == told
    assert len(os.listdir("/proc/self/fd")) == before
