"""Where a loader stands: every edge of an epoch, told and resumed, by a loader with other workers too."""

from __future__ import annotations

import itertools
import json
import warnings
from collections import Counter

import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.session.stream_client import StreamClient

from prefetchd.wire.errors import CallerError
from tests.scenario.datasets import Dice, Numbers, equal
from tests.scenario.lookback_trainer import BATCH, Told
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import fills_no_more, stream_when

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
        if step == STEPS:
            # Nothing is left of that epoch: the next one begins, as in a loop that stores its state at the end of one.
            epoch, step = epoch + 1, 0
        assert equal([[each.clone() for each in batch] for batch in found], expected(epoch, step))
        assert position(found.state_dict()) == (epoch + 1, 0)
        assert equal([[each.clone() for each in batch] for batch in found], expected(epoch + 1))


def share(rank, world_size, state=None, steps=None):
    """What one rank's trainer gets of 48 samples, up to its epoch's end or for `steps` batches: its batches of indices,
    and its state afterwards."""
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3, "buffer": 6, "rank": rank, "world_size": world_size}
    with PrefetchLoader(Numbers(48), **arguments) as found:
        if state is not None:
            found.load_state_dict(state)
        batches = [index.tolist() for _, index in itertools.islice(found, steps)]
        return batches, json.loads(json.dumps(found.state_dict()))


def samples(shares):
    return [index for batches, _ in shares for batch in batches for index in batch]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_of_another_number_go_on_where_all_ranks_stood(world_size):
    former = [share(rank, 2, steps=3) for rank in range(2)]
    rest = [share(rank, world_size, former[rank % 2][1]) for rank in range(world_size)]
    assert [state["epoch"] for _, state in rest] == [1] * world_size
    assert len(samples(former)) == len(samples(rest)) == 24
    assert sorted(samples(former) + samples(rest)) == list(range(48))
    for rank, (batches, _) in enumerate(rest):
        assert batches == share(rank, world_size)[0][6 // world_size :], "as a run with so many ranks from the start"


def test_where_the_ranks_do_not_meet_some_batches_come_again_and_none_is_left_out():
    former = [share(rank, 2, steps=2) for rank in range(2)]
    with pytest.warns(UserWarning, match="world_size was 2, is 3: 1 of 4 batches come again"):
        rest = [share(rank, 3, former[0][1]) for rank in range(3)]
    found = samples(former) + samples(rest)
    assert (set(found), len(found)) == (set(range(48)), 48 + 4)


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
    with loader() as found, pytest.raises(CallerError, match=r"epoch|step|version"):
        found.load_state_dict(state)


def test_a_state_of_other_batches_is_told():
    with loader() as found:
        state = found.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.load_state_dict(state)
        with pytest.warns(UserWarning, match="seed was 4, is 3"):
            found.load_state_dict(state | {"seed": 4})


def test_a_resumed_run_begins_in_the_ring_that_was_left(shared_daemon, tmp_path):
    dataset, arguments = Told(tmp_path / "calls"), {"batch_size": BATCH, "seed": 3, "buffer": 6, "stream": "resumed"}
    with PrefetchLoader(dataset, **arguments) as found:
        iterator = iter(found)
        for _ in range(3):
            next(iterator)
        state = found.state_dict()
    stream_when(shared_daemon, "resumed", fills_no_more, "what is left is ready")
    with PrefetchLoader(dataset, **arguments) as found:
        found.load_state_dict(state)
        # Kept: once it has gone, the next epoch is what is filled.
        iterator = iter(found)
        batches = [[each.clone() for each in batch] for batch, _ in zip(iterator, range(20))]
    wanted = epoch_batches(Told(tmp_path / "oracle"), 0, batch_size=BATCH, seed=3)
    assert equal(batches, wanted[3:23])
    made = Counter(dataset.steps())
    # Of what was left half is kept: the other half makes room for the beginning, for a run that begins again.
    assert {made[step] for step in range(3, 6)} == {BATCH}


@pytest.mark.parametrize("where", ["activate", "place_cursor"])
def test_a_signal_while_an_epoch_begins_ends_that_epoch_alone(where, monkeypatch):
    """Found as a loader that was refused each later epoch, after an alarm in its first next()."""
    begin = getattr(StreamClient, where)

    def alarmed(self, *arguments):
        monkeypatch.undo()
        begin(self, *arguments)
        raise TimeoutError

    with loader() as found:
        assert equal(list(found), expected(0))
        monkeypatch.setattr(StreamClient, where, alarmed)
        with pytest.raises(TimeoutError):
            iter(found).__next__()
        assert equal(list(found), expected(2))
        assert equal(list(found), expected(3))
