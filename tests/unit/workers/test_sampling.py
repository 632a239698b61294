"""Sampling gives DataLoader's order, epoch after epoch, and leaves generators as DataLoader leaves them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from prefetchd.plan.keys import unpack
from prefetchd.wire.messages import AFTER_FIRST, AT_END, BEFORE
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers import sampling as sampling_module
from prefetchd.workers.program import Program
from prefetchd.workers.sampling import KEPT_EPOCHS, OutOfReach, Sampling

LENGTH = 20


class Remembering(Sampler[int]):
    """Another order in each epoch, by what it keeps itself."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        yield from range(0, LENGTH, self.passes)


class Ambient(Sampler[int]):
    """Draws from every global generator, between two keys as well."""

    def __iter__(self) -> Any:
        for _ in range(6):
            yield int(torch.randint(LENGTH, ()))
            yield random.randrange(LENGTH)
            yield int(np.random.randint(LENGTH))


class Failing(Sampler[int]):
    def __iter__(self) -> Any:
        yield from range(5)
        raise LookupError("no more keys")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    inner = loader.batch_sampler.sampler if isinstance(loader.batch_sampler, BatchSampler) else loader.sampler
    found = [loader.generator, getattr(inner, "generator", None)]
    return list({id(each): each for each in found if each is not None}.values())


def sampling(spec_options: dict[str, Any] | None = None, **arguments: Any) -> tuple[Sampling, list[torch.Generator]]:
    """Of the program that a loader with these arguments would have."""
    loader = DataLoader(range(LENGTH), **arguments)  # type: ignore[arg-type]
    generator, sampler = arguments.get("generator"), loader._index_sampler
    generators = generators_of(loader)
    rows = -1 if "batch_sampler" in arguments else arguments["batch_size"] or 0
    options = {"batch_size": rows} | (spec_options or {})
    spec = StreamSpec("0" * 32, seed=5, order="sampler", length=LENGTH, **options)
    program = Program(None, index_sampler=sampler, generator=generator, generators=generators)
    return Sampling(spec, program), generators


def given(made: Sampling, epoch: int, step: int = 1) -> list[Any]:
    """All batches of the epoch, asked for `step` at a time."""
    steps = step
    while not (planned := made.plan(epoch, steps)).ended:
        steps += step
    return [unpack(keys)[0] for keys in planned.keys]


LOADERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True, "generator": seeded()},
    "in order": lambda: {"generator": seeded()},
    "random": lambda: {"sampler": RandomSampler(range(LENGTH), generator=seeded())},
    "random, both": lambda: {"sampler": RandomSampler(range(LENGTH), generator=seeded()), "generator": seeded()},
    "replacement": lambda: {
        "sampler": RandomSampler(range(LENGTH), replacement=True, num_samples=70, generator=seeded())
    },
    "weighted": lambda: {"sampler": WeightedRandomSampler([0.1, 0.9] * 10, 12, generator=seeded())},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(0, LENGTH, 3), generator=seeded())},
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9]},
    "remembering": lambda: {"sampler": Remembering()},
    "a batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(LENGTH), generator=seeded()), 3, drop_last=True)
    },
    "one by one": lambda: {"sampler": RandomSampler(range(LENGTH), generator=seeded()), "batch_size": None},
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("step", [1, 2, 100])
def test_the_order_is_data_loader_s_and_so_are_the_generators(make, step):
    arguments = make()
    if "batch_sampler" not in arguments:
        arguments = {"batch_size": 3} | arguments
    theirs = copy.deepcopy(arguments)
    made, generators = sampling(**arguments)
    loader = DataLoader(range(LENGTH), collate_fn=_as_they_come, **theirs)
    their_generators = generators_of(loader)
    for epoch in range(4):
        expected = list(loader)
        if arguments.get("batch_size", 3) is None:
            assert given(made, epoch, step) == [[key] for key in expected]
        else:
            assert given(made, epoch, step) == expected
        for ours, other in zip(generators, their_generators, strict=True):
            assert torch.equal(ours.get_state(), other.get_state())


def _as_they_come(batch: Any) -> Any:
    return batch


def test_states_are_told_before_after_the_first_batch_and_at_the_end():
    made, (generator,) = sampling(
        sampler=RandomSampler(range(LENGTH), replacement=True, num_samples=70, generator=seeded()), batch_size=3
    )
    planned = made.plan(0, 100)
    assert planned.states[BEFORE] == (seeded().get_state().numpy().tobytes(),)
    assert planned.states[AT_END] == made.states() == (generator.get_state().numpy().tobytes(),)
    assert len({*planned.states[BEFORE], *planned.states[AFTER_FIRST], *planned.states[AT_END]}) == 3


def test_what_a_sampler_draws_from_the_global_generators_depends_on_seed_epoch_and_rank_alone():
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        made, _ = sampling(sampler=Ambient(), batch_size=4)
        runs.append([given(made, epoch, seed) for epoch in range(3)])
        assert (int(torch.randint(1 << 30, ())), random.random()) == _first_draws(seed), "nobody else sees it"
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]
    other, _ = sampling({"rank": 1, "world_size": 2}, sampler=Ambient(), batch_size=4)
    assert given(other, 0) != runs[0][0]


def _first_draws(seed: int) -> tuple[int, float]:
    states = torch.get_rng_state(), random.getstate()
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        return int(torch.randint(1 << 30, ())), random.random()
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])


def test_epochs_between_are_run_through_and_those_long_behind_are_out_of_reach():
    straight, _ = sampling(sampler=Remembering(), batch_size=3)
    expected = [given(straight, epoch) for epoch in range(6)]
    made, _ = sampling(sampler=Remembering(), batch_size=3)
    assert given(made, 5) == expected[5]
    for epoch in range(6 - KEPT_EPOCHS, 6):
        assert given(made, epoch) == expected[epoch]
    with pytest.raises(OutOfReach):
        made.plan(5 - KEPT_EPOCHS, 1)


def test_a_sampler_without_a_memory_can_begin_anywhere():
    made, _ = sampling(sampler=WeightedRandomSampler([0.5] * LENGTH, 9), batch_size=3)
    late = given(made, 1000)
    assert given(made, 3) != late
    other, _ = sampling(sampler=WeightedRandomSampler([0.5] * LENGTH, 9), batch_size=3)
    assert given(other, 1000) == late
    for epoch in range(2000, 2000 + KEPT_EPOCHS):
        given(made, epoch)
    assert given(made, 1000) == late


def test_set_epoch_is_called_as_the_trainer_is_thought_to_call_it():
    made, _ = sampling(sampler=DistributedSampler(range(LENGTH), 3, 1, seed=5), batch_size=3)  # type: ignore[arg-type]
    loader = DataLoader(
        range(LENGTH),  # type: ignore[arg-type]
        batch_size=3,
        sampler=DistributedSampler(range(LENGTH), 3, 1, seed=5),  # type: ignore[arg-type]
        collate_fn=_as_they_come,
    )
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        assert made.plan(epoch, 1).sampler_epochs[BEFORE] == epoch
        assert given(made, epoch) == list(loader)
    # It turns out that it never does: from then on that is what is expected.
    made.rebase(3, 2, ())
    assert [made.plan(epoch, 1).sampler_epochs[BEFORE] for epoch in (3, 4, 5)] == [2, 2, 2]


def test_a_trainer_that_never_calls_set_epoch_is_understood_after_one_epoch():
    made, _ = sampling(sampler=DistributedSampler(range(LENGTH), 3, 1, seed=5), batch_size=3)  # type: ignore[arg-type]
    assert made.plan(0, 1).sampler_epochs[BEFORE] == 0
    assert made.plan(1, 1).sampler_epochs[BEFORE] == 1
    made.rebase(1, 0, ())
    assert [made.plan(epoch, 1).sampler_epochs[BEFORE] for epoch in (1, 2, 3)] == [0, 0, 0]


def test_rebased_generators_give_what_data_loader_gives_from_there():
    made, _ = sampling(shuffle=True, generator=seeded(), batch_size=3)
    given(made, 0)
    given(made, 1)
    other = torch.Generator().manual_seed(77)
    made.rebase(1, -1, (other.get_state().numpy().tobytes(),))
    loader = DataLoader(range(LENGTH), shuffle=True, generator=other, batch_size=3, collate_fn=_as_they_come)  # type: ignore[arg-type]
    assert [given(made, 1), given(made, 2)] == [list(loader), list(loader)]


def test_an_error_of_the_sampler_stands_where_it_came_and_ends_the_epoch():
    made, _ = sampling(sampler=Failing(), batch_size=2)
    for epoch in (0, 1):
        planned = made.plan(epoch, 100)
        assert [unpack(keys)[0] for keys in planned.keys] == [[0, 1], [2, 3]]
        assert isinstance(planned.error, LookupError)
        assert planned.ended


def test_a_sampler_that_never_ends_is_asked_for_no_more_than_is_needed():
    class Endless(Sampler[int]):
        asked = 0

        def __iter__(self) -> Any:
            while True:
                Endless.asked += 1
                yield Endless.asked % LENGTH

    made, _ = sampling(sampler=Endless(), batch_size=4)
    assert len(made.plan(0, 10).keys) == 10
    assert Endless.asked == 40


@pytest.mark.parametrize("length", [None, 1000], ids=["of no known length", "of a length"])
def test_another_epoch_begins_soon_though_a_sampler_never_ends(monkeypatch, length):
    """Found as five seconds, and 300 MB of keys, before each epoch but the first of a sampler without a length."""
    monkeypatch.setattr(sampling_module, "ENDLESS_AFTER", 4000)
    monkeypatch.setattr(sampling_module, "ENDLESS_UNSIZED_AFTER", 100)

    class Endless(Sampler[int]):
        asked = 0

        def __len__(self) -> int:
            if length is None:
                raise TypeError("it has none")
            return length

        def __iter__(self) -> Any:
            while True:
                Endless.asked += 1
                yield Endless.asked % LENGTH

    made, _ = sampling(sampler=Endless(), batch_size=4)
    made.plan(0, 10)
    made.plan(1, 10)
    most = 100 if length is None else 4000
    assert most <= Endless.asked - 40 < most + 4 * 1024


class Counted(Sampler[int]):
    """Counts what it is asked for; one that `remembers` draws from a generator of its own."""

    def __init__(self, length: int, remembers: bool = False) -> None:
        self.length = length
        self.own = random.Random(3) if remembers else None

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        for number in range(self.length):
            ASKED.append(number)
            yield number % LENGTH if self.own is None else self.own.randrange(LENGTH)


ASKED: list[int] = []


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("length", [400, 4000])
def test_a_long_epoch_that_was_broken_off_is_not_run_on(monkeypatch, length, remembers):
    """16 million samples took five seconds before the next epoch. What a sampler remembers is not lost for that."""
    monkeypatch.setattr(sampling_module, "LONG_SAMPLES", 2000)
    made, _ = sampling(sampler=Counted(length, remembers), batch_size=4)
    ASKED.clear()
    made.plan(0, 10)
    made.plan(1, 10)
    ran_on = len(ASKED) > 80
    assert ran_on == (length < 2000 or remembers)
    assert len(made.plan(0, 20).keys) == (length // 4 if ran_on else 20), "who is still in it goes on"


def test_a_stateless_epoch_that_was_broken_off_is_not_run_on():
    made, _ = sampling(sampler=RandomSampler(range(LENGTH)), batch_size=4)
    assert not made.plan(0, 2).ended
    whole = given(sampling(sampler=RandomSampler(range(LENGTH)), batch_size=4)[0], 1)
    assert given(made, 1) == whole
    assert not made.plan(0, 3).ended, "nobody has asked for more of it"
    first = given(sampling(sampler=RandomSampler(range(LENGTH)), batch_size=4)[0], 0)
    assert [unpack(keys)[0] for keys in made.plan(0, 5).keys] == first


def test_samples_before_a_batch_are_counted():
    made, _ = sampling(batch_sampler=[[1, 2], [3], [], (4, 5), [6]])
    planned = made.plan(0, 10)
    assert planned.samples == [2, 1, 0, 2, 1]
    assert [unpack(keys)[2] for keys in planned.keys] == [0, 2, 3, 3, 5]
    assert [unpack(keys)[0] for keys in planned.keys] == [[1, 2], [3], [], (4, 5), [6]]


def test_a_sequential_sampler_needs_nothing_of_before():
    made, _ = sampling(sampler=SequentialSampler(range(LENGTH)), batch_size=8)
    assert given(made, 7) == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
