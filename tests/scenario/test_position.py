"""Where a loader stands: every edge of an epoch, told and resumed, by a loader with other workers too."""

from __future__ import annotations

import json
import warnings

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import CallerError
from tests.scenario.datasets import Dice, equal
from tests.scenario.oracle import epoch_batches

pytestmark = pytest.mark.usefixtures("shared_daemon")

STEPS = 8


def loader(**arguments):
    return PrefetchLoader(Dice(30), batch_size=4, shuffle=True, seed=3, buffer=6, **arguments)


def expected(epoch, step=0):
    return epoch_batches(Dice(30), epoch, batch_size=4, seed=3, shuffle=True)[step:]


def position(state):
    return state["epoch"], state["step"]


def state_after(batches):
    """The state after so many calls of next(), over epochs; None stands for an epoch's StopIteration."""
    with loader() as found:
        iterator = iter(found)
        for call in batches:
            if call is None:
                with pytest.raises(StopIteration):
                    next(iterator)
                iterator = iter(found)
            else:
                next(iterator)
        return json.loads(json.dumps(found.state_dict()))


@pytest.mark.parametrize(
    ("calls", "at"),
    [
        ([], (0, 0)),
        ([1], (0, 1)),
        ([1] * (STEPS - 1), (0, STEPS - 1)),
        ([1] * STEPS, (0, STEPS)),
        ([1] * STEPS + [None], (1, 0)),
        ([1] * STEPS + [None, 1], (1, 1)),
    ],
    ids=["new", "first", "before the last", "last", "stop", "second epoch"],
)
def test_a_state_tells_what_was_yielded_and_is_resumed_from_there(calls, at):
    state = state_after(calls)
    assert position(state) == at
    with loader(num_workers=1, fingerprint_extra="another stream") as found:
        found.load_state_dict(state)
        assert found.state_dict() == state
        epoch, step = at
        assert equal([[each.clone() for each in batch] for batch in found], expected(epoch, step))
        assert position(found.state_dict()) == (epoch + 1, 0)
        assert equal([[each.clone() for each in batch] for batch in found], expected(epoch + 1))


def test_after_the_last_batch_a_resumed_run_yields_nothing_and_then_the_next_epoch():
    state = state_after([1] * STEPS)
    with loader() as found:
        found.load_state_dict(state)
        assert list(found) == []
        assert equal([[each.clone() for each in batch] for batch in found], expected(1))


def test_set_epoch_of_the_resumed_epoch_keeps_the_step():
    """The usual loop: for epoch in range(start, end): loader.set_epoch(epoch)."""
    state = state_after([1, 1, 1])
    with loader() as found:
        found.load_state_dict(state)
        for epoch in range(2):
            found.set_epoch(epoch)
            batches = [[each.clone() for each in batch] for batch in found]
            assert equal(batches, expected(epoch, 3 if epoch == 0 else 0))
        found.set_epoch(0)
        assert position(found.state_dict()) == (0, 0)


def test_the_iterator_that_was_asked_last_counts():
    with loader() as found:
        first, second = iter(found), iter(found)
        next(first)
        assert position(found.state_dict()) == (0, 1)
        next(second)
        assert position(found.state_dict()) == (1, 1)
        next(first)
        assert position(found.state_dict()) == (0, 2)


def test_living_iterators_go_on_as_they_are():
    with loader() as found:
        iterator = iter(found)
        next(iterator)
        found.load_state_dict(found.state_dict() | {"epoch": 7, "step": 2})
        assert equal([[each.clone() for each in batch] for batch in iterator], expected(0, 1))
        found.load_state_dict(found.state_dict() | {"epoch": 7, "step": 2})
        assert equal([[each.clone() for each in batch] for batch in found], expected(7, 2))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0, "step": 0},
        {"version": 1, "epoch": -1, "step": 0},
        {"version": 1, "epoch": 0, "step": -1},
        {"version": 99, "epoch": 0, "step": 0},
        {"version": 1, "epoch": "x", "step": 0},
        None,
    ],
)
def test_what_is_no_state_is_refused(state):
    with loader() as found, pytest.raises(CallerError, match="epoch"):
        found.load_state_dict(state)


def test_a_state_of_other_batches_is_told():
    with loader() as found:
        state = found.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.load_state_dict(state)
        with pytest.warns(UserWarning, match="seed was 4, is 3"):
            found.load_state_dict(state | {"seed": 4})


def test_a_resumed_run_begins_in_the_ring_that_was_left(shared_daemon):
    arguments = {"stream": "resumed"}
    with loader(**arguments) as found:
        iterator = iter(found)
        for _ in range(3):
            next(iterator)
        state = found.state_dict()
    with loader(**arguments) as found:
        found.load_state_dict(state)
        assert equal([[each.clone() for each in batch] for batch in found], expected(0, 3))
