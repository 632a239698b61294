"""Rows of numbers that decode and are no rows of their message: a ProtocolError, and nothing has changed."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.daemon.engine.commands import Assign, Send, WriteSlot
from prefetchd.processes.process_exit import KILLED
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import encode
from prefetchd.wire.messages import (
    BadSamples,
    Begun,
    Digested,
    Filled,
    FillFailed,
    Hello,
    Measured,
    PlanFailed,
    Planned,
    Ready,
    ShardBegun,
    ShardCame,
    ShardEnded,
    Spent,
    StoreFailed,
    Unfit,
)
from prefetchd.wire.segment_layout import encode_slot_record
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from tests.budgets import tries
from tests.property.copying import identity
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 13, 3)
numbers = st.integers(-(1 << 63), (1 << 64) - 1)


def rows_but(width):
    """Rows of which one at least has not `width` numbers."""
    odd = st.lists(numbers, max_size=8).filter(lambda row: len(row) != width)
    row = st.lists(numbers, min_size=width, max_size=width)
    return st.tuples(st.lists(row, max_size=2), odd, st.lists(row, max_size=2)).map(
        lambda found: tuple(map(tuple, [*found[0], found[1], *found[2]]))
    )


@given(st.sampled_from(["cursors", "held"]), st.data())
@tries(100)
def test_a_hello_with_odd_rows(field, data):
    world = World()
    before = identity(world)
    hello = Hello(1, "trainer", "test", 1, "s", SPEC.fingerprint, encode_spec(SPEC), False)
    rows = data.draw(rows_but(4 if field == "cursors" else 3))
    with pytest.raises(ProtocolError, match=rf"Hello\.{field}"):
        world.engine.hello(1, dataclasses.replace(hello, **{field: rows}), 0.0)
    assert identity(world) == before


@given(rows_but(4))
@tries(100)
def test_an_answer_with_odd_rows(rows):
    world = World()
    world.join(SPEC).place(1, 0, 0, True)
    world.come_to_rest()
    worker = min(world.workers)
    before = identity(world)
    with pytest.raises(ProtocolError, match=r"Filled\.tasks"):
        world.engine.worker_message(worker, Filled(rows), 0.0)
    assert identity(world) == before


@pytest.mark.parametrize("times", [(1, 2), (1, 99, 1), (1, 0, 1, 1)])
def test_an_answer_with_odd_times(times):
    world = World()
    world.join(SPEC).place(1, 0, 0, True)
    world.come_to_rest()
    worker = min(world.workers)
    with pytest.raises(ProtocolError, match=r"Filled\.sample_times"):
        world.engine.worker_message(worker, Filled((), times), 0.0)


# --- answers of workers and planners ---

SMALL = st.integers(-2, 12)
WILD = SMALL | st.sampled_from([1 << 31, (1 << 48) + 1, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)])
BYTES = st.binary(max_size=40)
ROWS = st.lists(st.lists(WILD, max_size=5).map(tuple), max_size=3).map(tuple)
FIELDS = {"int": WILD, "bytes": BYTES, "str": st.text(max_size=8), "Ints": st.lists(WILD, max_size=6).map(tuple)}
FIELDS |= {"Rows": ROWS, "Blobs": st.lists(BYTES, max_size=3).map(tuple), "bool": st.booleans()}
ANSWERS = (
    BadSamples,
    Digested,
    Filled,
    FillFailed,
    Measured,
    ShardBegun,
    ShardCame,
    ShardEnded,
    Spent,
    StoreFailed,
    Unfit,
    Begun,
    Planned,
    PlanFailed,
    Hello,
    Ready,
)
STREAMS = {
    "rows": ({}, SPEC),
    "looks back": ({"lookback": True}, dataclasses.replace(SPEC, lookback=2)),
    "planned": ({"planned": True}, dataclasses.replace(SPEC, order="sampler")),
    "shards": (
        {"shards": [2, 3], "by_rows": False},
        dataclasses.replace(SPEC, order="iterable", length=-1, logical_shards=2),
    ),
}


def wild_answers(world, process):
    """Whatever the process may say, often about a task that it has."""
    worker = world.workers.get(process)
    tasks = [row[0] for row in worker.tasks] if worker is not None else []
    given = st.sampled_from(tasks) if tasks else WILD

    def of(kind):
        fields = {field.name: FIELDS[str(field.type)] for field in dataclasses.fields(kind)}
        if "task" in fields:
            fields["task"] = given | WILD
        if kind is Filled:
            row = st.tuples(given | WILD, WILD, WILD, WILD)
            fields["tasks"] = st.lists(row, max_size=3).map(tuple) | ROWS
        if kind in (Begun, Planned, PlanFailed):
            fields["epoch"] = st.just(0) | WILD
        return st.builds(kind, **fields)

    return st.sampled_from(ANSWERS).flatmap(of)


def step(world):
    """The next thing happens that can happen without the trainer."""
    if world.pending:
        world.deliver(0)
    elif any(planner.messages for planner in world.planners.values()):
        world.plan()
    elif any(worker.tasks for worker in world.workers.values()):
        world.work(0)


def can_be_carried_out(world):
    """All that the engine says now has room where it goes."""
    for command in world.engine.take_commands():
        if isinstance(command, (Send, Assign)):
            encode(command.message)
        elif isinstance(command, WriteSlot):
            encode_slot_record(command.record)


@pytest.mark.parametrize("kind", STREAMS)
@given(st.data())
@tries(300)
def test_whatever_a_worker_or_planner_answers_is_taken_or_refused_and_changes_nothing_then(kind, data):
    options, spec = STREAMS[kind]
    world = World(**options)
    world.join(spec).place(1, 0, 0, True)
    # Till then there is a process, with something to do.
    for _ in range(data.draw(st.integers(4, 14))):
        step(world)
    processes = sorted([*world.workers, *world.planners])
    process = data.draw(st.sampled_from(processes))
    message = data.draw(wild_answers(world, process))
    before = identity(world)
    try:
        world.engine.worker_message(process, message, 0.0)
    except ProtocolError:
        assert identity(world) == before
        # That is its end; the stream goes on.
        world.engine.worker_died(process, KILLED, 0.0)
    can_be_carried_out(world)
