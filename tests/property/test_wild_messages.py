"""Rows of numbers that decode and are no rows of their message: a ProtocolError, and nothing has changed."""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Filled, Hello
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
    world.settle()
    worker = min(world.workers)
    before = identity(world)
    with pytest.raises(ProtocolError, match=r"Filled\.tasks"):
        world.engine.worker_message(worker, Filled(rows), 0.0)
    assert identity(world) == before


@pytest.mark.parametrize("times", [(1, 2), (1, 99, 1), (1, 0, 1, 1)])
def test_an_answer_with_odd_times(times):
    world = World()
    world.join(SPEC).place(1, 0, 0, True)
    world.settle()
    worker = min(world.workers)
    with pytest.raises(ProtocolError, match=r"Filled\.sample_times"):
        world.engine.worker_message(worker, Filled((), times), 0.0)
