"""What runs in an actor, without Ray: it makes batches where all is as beside the daemon, and refuses elsewhere."""

from __future__ import annotations

import mmap
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from prefetchd_client.batches.tensors import BatchReader

from prefetchd.processes.environment import read_environment
from prefetchd.remote import actor as module
from prefetchd.remote.actor import FillActor, Loaded, Made
from prefetchd.remote.comparison import processor_here, versions_here
from prefetchd.remote.program_parts import describe_program
from prefetchd.ring.capacity import aligned_slot_bytes
from prefetchd.wire.framing import decode
from prefetchd.wire.messages import FILL_WHOLE, Filled
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from tests.contract import programs
from tests.forking.server import NAME, OWNER
from tests.scenario.datasets import Made as MadeBy
from tests.scenario.waiting import until
from tests.unit.remote.programs import init_leaves, program_of

SPEC = StreamSpec("0" * 32, 7, "sequential", 24, 4)
SLOT_BYTES = aligned_slot_bytes(1 << 14)
HOST = f"{socket.gethostname()}-abcd1234"


class Given:
    """What the bridge gives an actor: a program as an array that cannot be written to, and what it is."""

    def __init__(self, dataset: Any, **parts: Any) -> None:
        fd = program_of(dataset, **parts)
        try:
            self.environment = read_environment(fd)
            self.parts = describe_program(fd, self.environment) if not isinstance(dataset, programs.Unloadable) else {}
            self.program = np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8)
        finally:
            os.close(fd)

    def load(
        self, actor: FillActor, versions: dict[str, str] | None = None, parts: dict[str, str] | None = None
    ) -> Loaded:
        versions, parts = versions_here() | (versions or {}), self.parts | (parts or {})
        return actor.load(self.program, encode_spec(SPEC), b"", SLOT_BYTES, 1, versions, parts)


@pytest.fixture(scope="module")
def numbers() -> Given:
    return Given(MadeBy(programs.numbered))


@pytest.fixture
def actor(monkeypatch) -> Iterator[FillActor]:
    """One whose threads start processes one after another: what forks the tests' interpreters knows of no threads."""
    start, lock = getattr(OWNER, NAME), threading.Lock()

    def start_alone(*arguments: Any) -> int:
        with lock:
            return int(start(*arguments))

    monkeypatch.setattr(OWNER, NAME, start_alone)
    monkeypatch.setattr(module, "_node_id", lambda: "abcd1234")
    made = FillActor()
    yield made
    made.close()


@pytest.fixture
def processes(numbers) -> set[int]:
    """Those of the tests, before an actor has any: what starts interpreters for them is there once `numbers` are."""
    return children()


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


def fill(actor: FillActor, step: int) -> Made:
    return actor.fill(0, (7, FILL_WHOLE, 0, step, 0, 4, 0), b"")


# --- it makes batches ---


def test_an_actor_that_is_as_the_daemon_s_machine_makes_batches(actor, numbers):
    assert numbers.load(actor) == Loaded(HOST, processor_here())
    for step in (0, 3):
        made = fill(actor, step)
        ((task, payload_bytes, _, samples),) = decode(made.packet).tasks
        assert (task, payload_bytes, samples) == (7, made.payload.payload_bytes, 4)
        assert made.payload.wide.dtype == np.uint8
        assert BatchReader().read(made.payload.wide)[1].tolist() == [4 * step + row for row in range(4)]
        assert (made.failure, made.left_out) == ("", 0)


def test_how_long_a_task_was_here_is_no_shorter_than_it_took(actor, numbers):
    numbers.load(actor)
    made = fill(actor, 0)
    told = decode(made.packet)
    assert isinstance(told, Filled)
    assert made.here_us >= told.tasks[0][2]


def test_what_is_no_batch_has_no_payload(actor):
    Given(MadeBy(programs.broken)).load(actor)
    made = fill(actor, 1)
    assert made.payload is None
    assert made.failure == "", "the actor is of use for others"
    assert decode(made.packet).task == 7


def test_an_actor_that_is_of_no_use_any_more_says_why(actor):
    Given(MadeBy(programs.process_number)).load(actor)
    # Of a batch, not by its name: a worker of an actor before it may have become a child of this very process.
    worker = psutil.Process(BatchReader().read(fill(actor, 0).payload.wide).tolist()[0])
    worker.parent().kill()
    failed = until(lambda: next((each for each in [fill(actor, 0)] if each.failure), None), "its zygote is gone")
    assert "zygote" in failed.failure
    assert (failed.packet, failed.payload) == (b"", None)


def test_closing_it_leaves_no_process(actor, numbers, processes):
    numbers.load(actor)
    assert children() > processes
    actor.close()
    assert children() <= processes
    actor.close()


def test_one_that_has_loaded_nothing_is_closed_without_a_word():
    FillActor().close()


# --- it refuses ---


def test_another_version_is_refused_by_its_name_before_anything_is_started(actor, numbers, processes):
    loaded = numbers.load(actor, versions={"torch": "0.1"})
    assert (loaded.host, loaded.processor) == (HOST, processor_here())
    assert loaded.refusal == f"torch: 0.1 here, {versions_here()['torch']} on {HOST}"
    assert children() <= processes


def test_another_part_is_refused_by_its_name_and_nothing_is_left(actor, numbers, processes):
    loaded = numbers.load(actor, parts={"dataset": "another digest"})
    assert loaded.refusal == f"dataset: another digest here, {numbers.parts['dataset']} on {HOST}"
    assert children() <= processes


def test_a_program_that_cannot_be_loaded_here_is_refused_with_the_reason(actor):
    assert "the index is not there: gone" in Given(programs.Unloadable("gone")).load(actor).refusal


def test_workers_that_do_not_come_up_are_a_refusal(actor):
    loaded = Given(MadeBy(programs.numbered), worker_init_fn=init_leaves).load(actor)
    assert "exited with 3" in loaded.refusal


@pytest.mark.parametrize(
    "given",
    [
        lambda: Given(programs.Unloadable("gone")),
        lambda: Given(MadeBy(programs.numbered), worker_init_fn=init_leaves),
    ],
    ids=["program", "workers"],
)
def test_an_actor_that_refuses_leaves_no_process(actor, processes, given):
    assert given().load(actor).refusal
    until(lambda: children() <= processes, "its processes are gone", within_s=5)


def test_a_node_without_memory_for_a_ring_refuses(actor, numbers, monkeypatch):
    def full(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "Cannot allocate memory" in numbers.load(actor).refusal


def test_a_program_that_is_damaged_on_its_way_is_refused(actor, numbers):
    """As what does not belong on this node, not as an error of Ray's."""
    damaged = np.zeros_like(numbers.program)
    loaded = actor.load(damaged, encode_spec(SPEC), b"", SLOT_BYTES, 1, versions_here(), numbers.parts)
    assert "program segment" in loaded.refusal
