"""Every sample sees generators that were seeded for it alone, whatever samples did before it, lazily or not."""

from __future__ import annotations

import hashlib
import random
import sys
import types
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from prefetchd.workers import state_readers
from prefetchd.workers.generator_watches import NUMPY, RANDOM, TORCH
from prefetchd.workers.own_generators import OwnGenerators
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.state_readers import hook_state_readers
from tests.budgets import tries
from tests.unit.workers.conftest import TRIAL

SEEDS = st.integers(0, (1 << 63) - 1)


pytestmark = pytest.mark.usefixtures("as_in_a_worker")


def seed_by_hand(seed: int) -> None:
    torch.random.default_generator.manual_seed(seed)
    np.random.seed(seed >> 31)
    random.seed(seed)


# --- what samples do ---


def _numpy_in_brackets() -> float:
    """Draws, and leaves the state as it was."""
    state = np.random.get_state()
    drawn = np.random.rand()
    np.random.set_state(state)
    return drawn


def _random_in_brackets() -> float:
    state = random.getstate()
    drawn = random.random()
    random.setstate(state)
    return drawn


def _random_elsewhere() -> float:
    """A generator of the sample's own, begun where the global one stands."""
    own = random.Random()
    own.setstate(random.getstate())
    return own.random()


def _numpy_elsewhere() -> float:
    own = np.random.RandomState()
    own.set_state(np.random.get_state(legacy=False))
    return own.rand()


def _torch_in_brackets() -> float:
    state = torch.get_rng_state()
    drawn = torch.rand(1).item()
    torch.set_rng_state(state)
    return drawn


def _torch_forked() -> float:
    with torch.random.fork_rng(devices=[]):
        return torch.rand(1).item()


def _torch_elsewhere() -> float:
    own = torch.Generator()
    own.set_state(torch.random.get_rng_state())
    return torch.rand(1, generator=own).item()


def _shuffled(shuffle: Any) -> list[int]:
    numbers = list(range(20))
    shuffle(numbers)
    return numbers


DEEDS = {
    "nothing": lambda: None,
    "torch.rand": lambda: torch.rand(3).tolist(),
    "torch.randn": lambda: torch.randn(20).tolist(),
    "torch.randint": lambda: torch.randint(0, 1 << 40, (2,)).tolist(),
    "torch.randperm": lambda: torch.randperm(10).tolist(),
    "torch.bernoulli": lambda: torch.full((5,), 0.5).bernoulli().tolist(),
    "torch.multinomial": lambda: torch.ones(5).multinomial(2).tolist(),
    "torch's state": lambda: torch.get_rng_state().sum().item(),
    "torch.initial_seed": lambda: torch.initial_seed(),
    "torch in brackets": _torch_in_brackets,
    "torch.random.fork_rng": _torch_forked,
    "torch elsewhere": _torch_elsewhere,
    "torch's generator": lambda: torch.rand(2, generator=torch.default_generator).tolist(),
    "torch's generator's seed": lambda: torch.default_generator.initial_seed(),
    "torch's generator's state": lambda: torch.default_generator.get_state().sum().item(),
    "torch, one round": lambda: torch.empty(624, dtype=torch.int32).random_().tolist(),
    "torch.manual_seed": lambda: (torch.manual_seed(5), torch.rand(1).item())[1],
    "np.random.rand": lambda: np.random.rand(),
    "np.random.randn": lambda: np.random.randn(),
    "np.random.randint": lambda: np.random.randint(0, 100, 3).tolist(),
    "np.random.choice": lambda: np.random.choice(10, 3, replace=False).tolist(),
    "np.random.permutation": lambda: np.random.permutation(10).tolist(),
    "np.random.shuffle": lambda: _shuffled(np.random.shuffle),
    "np.random.normal": lambda: np.random.normal(size=3).tolist(),
    "np.random.beta": lambda: np.random.beta(1, 2),
    "np.random.bytes, one round": lambda: np.random.bytes(624 * 4),
    "np.random by object": lambda: np.random.mtrand._rand.random_sample(),
    "np.random.default_rng by state": lambda: np.random.default_rng(np.random.get_state()[1]).random(),
    "np.random in brackets": _numpy_in_brackets,
    "np.random elsewhere": _numpy_elsewhere,
    "np.random.seed": lambda: (np.random.seed(5), np.random.rand()),
    "random.random": lambda: random.random(),
    "random.randint": lambda: random.randint(0, 1 << 70),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.choice": lambda: random.choice("abcdef"),
    "random.sample": lambda: random.sample(range(100), 3),
    "random.shuffle": lambda: _shuffled(random.shuffle),
    "random.getrandbits, one round": lambda: random.getrandbits(624 * 32),
    "random.betavariate": lambda: random.betavariate(1, 2),
    "random by object": lambda: random._inst.random(),
    "random in brackets": _random_in_brackets,
    "random elsewhere": _random_elsewhere,
    "random's state": lambda: hashlib.sha1(repr(random.getstate()).encode()).hexdigest(),
    "random.seed": lambda: (random.seed(5), random.random()),
}

deeds = st.lists(st.sampled_from(list(DEEDS)), max_size=3)


class Sample:
    """Does its deeds, in order; `raises` after them."""

    def __init__(self, names: list[str], *, raises: bool = False) -> None:
        self.names = names
        self.raises = raises

    def __call__(self, argument: Any) -> Any:
        done = [argument, *[DEEDS[name]() for name in self.names]]
        if self.raises:
            raise ValueError(repr(done))
        return done


def outcome(call: Any) -> Any:
    try:
        return call()
    except ValueError as error:
        return str(error)


def expected(seed: int, sample: Sample, argument: Any) -> Any:
    seed_by_hand(seed)
    return outcome(lambda: sample(argument))


# --- the same as seeding by hand ---


@pytest.mark.parametrize("name", DEEDS)
@pytest.mark.parametrize("lazy", [False, True])
def test_the_first_draw_after_any_number_of_samples_that_drew_nothing(name, lazy):
    for samples_before in (0, 1, TRIAL, TRIAL + 2):
        seeder = SampleSeeder(lazy=lazy)
        for seed in range(samples_before):
            assert seeder.run(seed << 32, Sample([]), "x") == ["x"]
        for seed in (123456789 << 31, (1 << 63) - 1, 0):
            wanted = expected(seed, Sample([name]), "x")
            seed_by_hand(77)
            again = SampleSeeder(lazy=lazy)
            for before in range(samples_before):
                again.run(before, Sample([]), None)
            assert again.run(seed, Sample([name]), "x") == wanted
            assert again.run(seed, Sample([name]), "x") == wanted, "and once more"


@given(
    st.lists(st.tuples(SEEDS, deeds, st.booleans()), min_size=1, max_size=5),
    st.integers(0, TRIAL + 1),
    st.lists(SEEDS, max_size=2),
)
@tries(150)
def test_any_samples_in_any_order(plan, quiet, batch_seeds):
    """Some that draw nothing, then any; a batch is seeded now and then."""
    samples = [(seed, Sample(names, raises=raises), k) for k, (seed, names, raises) in enumerate(plan)]
    wanted = [expected(*each) for each in samples]
    collated = [expected(seed, Sample(["random.gauss", "np.random.randn"]), 0) for seed in batch_seeds]
    seeder = SampleSeeder(lazy=True)
    for seed in range(quiet):
        seeder.run(seed, Sample([]), None)
    found, batches = [], []
    for k, (seed, sample, argument) in enumerate(samples):
        found.append(outcome(lambda seed=seed, sample=sample, k=argument: seeder.run(seed, sample, k)))
        if k < len(batch_seeds):
            seeder.seed(batch_seeds[k])
            batches.append(Sample(["random.gauss", "np.random.randn"])(0))
    assert found == wanted
    assert batches == collated[: len(batches)]


def test_one_who_reads_after_drawing_sees_the_right_state():
    sample = Sample(["random.random", "random's state", "np.random.rand", "np.random elsewhere"])
    wanted = expected(5, sample, 0)
    seeder = SampleSeeder(lazy=True)
    for seed in range(TRIAL):
        seeder.run(seed, Sample([]), None)
    assert seeder.run(5, sample, 0) == wanted


def test_one_who_reads_between_two_samples_sees_what_there_is():
    seeder = SampleSeeder(lazy=True)
    for seed in range(TRIAL + 1):
        seeder.run(seed, Sample([]), None)
    for _ in range(2):
        assert random.getstate() == random.Random(TRIAL - 1).getstate(), "the last one that was seeded"


# --- at which price ---


class Count:
    def __init__(self, watch: Any) -> None:
        self.seeded = 0
        self._seed = watch.seed
        watch.seed = self

    def __call__(self, seed: int) -> None:
        self.seeded += 1
        self._seed(seed)


def quiet_seeder(*, lazy: bool) -> tuple[SampleSeeder, list[Count]]:
    seeder = SampleSeeder(lazy=lazy)
    for seed in range(TRIAL):
        seeder.run(seed, Sample([]), None)
    return seeder, [Count(watch) for watch in seeder._watched]


def seeded(counts: list[Count]) -> list[int]:
    return [count.seeded for count in counts]


def test_generators_that_nobody_uses_are_not_seeded_any_more():
    seeder, counts = quiet_seeder(lazy=True)
    for seed in range(10):
        seeder.run(seed, Sample([]), None)
    assert seeded(counts) == [0, 0, 0]


@pytest.mark.parametrize(
    ("deed", "place"), [("torch.rand", TORCH), ("np.random.rand", NUMPY), ("random.random", RANDOM)]
)
def test_one_that_is_used_is_seeded_from_then_on_and_the_others_are_not(deed, place):
    seeder, counts = quiet_seeder(lazy=True)
    made = []

    def make(argument: Any) -> Any:
        made.append(argument)
        return DEEDS[deed]()

    seeder.run(1, make, "first")
    assert made == ["first", "first"], "made again under the right seed"
    for count in counts:
        count.seeded = 0
    for seed in range(10):
        seeder.run(seed, make, seed)
    assert made[2:] == list(range(10)), "made but once"
    assert seeded(counts) == [10 * (place == other) for other in range(3)]


@pytest.mark.parametrize("how", ["torch's generator's seed", "torch's generator's state"])
def test_whoever_takes_torch_s_generator_may_read_it_at_any_time(how):
    taken = []

    def make(argument: Any) -> int:
        if not taken:
            taken.append(torch.default_generator)
        return taken[0].initial_seed()

    seeder, counts = quiet_seeder(lazy=True)
    DEEDS[how]()
    assert [seeder.run(seed, make, None) for seed in range(3)] == [0, 1, 2]
    assert seeded(counts) == [3, 0, 0]


def test_a_generator_of_torch_s_that_a_module_or_the_dataset_has_is_always_seeded(monkeypatch):
    kept = types.ModuleType("keeps")
    kept.default_generator = torch.random.default_generator
    monkeypatch.setitem(sys.modules, "keeps", kept)
    readers = state_readers.kept_state_readers()
    assert (kept.__dict__, "default_generator") in readers
    assert [names["__name__"] for names, name in readers if name == "default_generator"] == ["keeps"]
    monkeypatch.setattr(state_readers._hooks, "hooked", False)
    hook_state_readers([(kept.__dict__, "default_generator")])
    seeder, _ = quiet_seeder(lazy=True)
    assert [seeder.run(seed, lambda _: kept.default_generator.initial_seed(), None) for seed in range(3)] == [0, 1, 2]
    monkeypatch.setattr(state_readers._hooks, "is_generator_taken", False)
    seeder = SampleSeeder(lazy=True)
    held = [torch.random.default_generator]
    seeder.seek(OwnGenerators({"dataset": held}))
    for seed in range(TRIAL + 2):
        assert seeder.run(seed, lambda _: held[0].initial_seed(), None) == seed
    assert not seeder.seeds_nothing


# --- several samples before it is asked ---


def make_all(seeder: SampleSeeder, samples: list[tuple[int, Sample, Any]], most: int) -> list[Any]:
    """Makes the samples as whoever uses `seeds_nothing` does, `most` before each question."""
    made: list[Any] = []
    while len(made) < len(samples):
        if not seeder.seeds_nothing:
            own = samples[len(made)]
            made.append(outcome(lambda own=own: seeder.run(*own)))
            continue
        found = []
        for seed, sample, argument in samples[len(made) :][:most]:
            seeder.unseeded = seed
            found.append(outcome(lambda sample=sample, argument=argument: sample(argument)))
        if not seeder.drew():
            made += found
    return made


@given(st.lists(st.tuples(SEEDS, deeds, st.booleans()), min_size=1, max_size=8), st.integers(1, 4))
@tries(150)
def test_samples_that_are_made_before_it_is_asked(plan, most):
    samples = [(seed, Sample(names, raises=raises), k) for k, (seed, names, raises) in enumerate(plan)]
    wanted = [expected(*each) for each in samples]
    state_readers._hooks.is_generator_taken = False
    seeder = SampleSeeder(lazy=True)
    for seed in range(TRIAL):
        seeder.run(seed, Sample([]), None)
    assert seeder.seeds_nothing
    assert make_all(seeder, samples, most) == wanted


def test_it_is_settled_once_nothing_is_seeded_and_never_before():
    seeder = SampleSeeder(lazy=True)
    for seed in range(TRIAL):
        assert not seeder.seeds_nothing
        seeder.run(seed, Sample([]), None)
    assert seeder.seeds_nothing
    seeder.run(1, Sample(["random.random"]), None)
    assert not seeder.seeds_nothing
    assert not SampleSeeder().seeds_nothing


def test_a_sample_that_draws_nothing_and_raises_is_not_made_again():
    seeder, _ = quiet_seeder(lazy=True)
    made = []
    with pytest.raises(ZeroDivisionError):
        seeder.run(1, lambda argument: made.append(argument) or 1 / 0, "x")
    assert made == ["x"]


def test_without_laziness_all_are_seeded_each_time():
    seeder, counts = quiet_seeder(lazy=False)
    for seed in range(10):
        seeder.run(seed, Sample([]), None)
    assert seeded(counts) == [10, 10, 10]


def test_a_seeder_that_is_made_changes_nothing():
    seed_by_hand(3)
    random.gauss(0, 1)
    before = torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()
    SampleSeeder()
    assert (torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()) == before


def test_the_states_that_are_watched_are_where_they_are_believed_to_be():
    seeder = SampleSeeder(lazy=True)
    assert seeder._lazy == [True, True, True], "else seeding costs what it need not"


def test_generators_of_ones_own_can_still_be_read():
    own = random.Random(5)
    assert own.getstate() == random.Random(5).getstate()
    seed_by_hand(9)
    assert random.getstate() == random.Random(9).getstate()
    assert np.array_equal(np.random.get_state()[1], np.random.RandomState(9 >> 31).get_state()[1])
    assert np.random.get_state(legacy=False)["bit_generator"] == "MT19937"
