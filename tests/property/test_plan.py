"""The laws of the plan: a shuffle that is one and is fair, an epoch that ranks share exactly, seeds that stay.

`permuted`, `seed_of` and their kin below are a second implementation, written from the docstrings of prefetchd.plan
alone: it keeps the formulas honest, and is what another program would have to do to plan the same batches.

The statistics use a fixed set of keys, so they pass or fail for ever; each is shown to reject permutations that
are broken in the way that it looks for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tracemalloc
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from torch.utils.data import DataLoader, DistributedSampler

from prefetchd.plan import order
from prefetchd.plan.batch_plan import BLOCK, BatchPlan, PlannedRows
from prefetchd.plan.order import SMALL, Permutation
from prefetchd.plan.schedule import Schedule, schedule_of
from prefetchd.plan.seeds import (
    BATCH,
    ORDER,
    SAMPLE,
    batch_seed,
    finalise_array,
    order_key,
    sample_seed,
    sample_seeds,
)
from prefetchd.wire.seed_words import DEVICE, derive, finalise
from prefetchd.wire.stream_spec import LENGTH_LIMIT, StreamSpec
from tests.budgets import tries

WORDS = st.integers(0, (1 << 64) - 1)
SEEDS = st.integers(0, (1 << 63) - 1)
EPOCHS = st.integers(0, 1 << 40)


def spec_of(length: int, batch_size: int, order: str = "sequential", seed: int = 0, **fields: object) -> StreamSpec:
    return StreamSpec("0" * 32, seed, order, length, batch_size, **fields)


def u64(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.uint64)


# --- the second implementation ---


def mixed(z: int) -> int:
    z %= 1 << 64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ z >> 27) * 0x94D049BB133111EB % (1 << 64)
    return z ^ z >> 31


def derived(seed: int, purpose: int, a: int, b: int) -> int:
    word = mixed(seed + 0x9E3779B97F4A7C15)
    for part in (purpose, a, b):
        word = mixed((word ^ part) + 0x9E3779B97F4A7C15)
    return word


def seed_of(seed: int, epoch: int, ordinal: int) -> int:
    return derived(seed, 1, epoch, ordinal) // 2


def batch_seed_of(seed: int, epoch: int, step: int, rank: int) -> int:
    return mixed((derived(seed, 2, epoch, step) ^ rank) + 0x9E3779B97F4A7C15) // 2


def permuted(key: int, n: int, position: int) -> int:
    if n <= 2048:
        return sorted(range(n), key=lambda p: (derived(key, 3, n, p), p))[position]
    width = (n - 1).bit_length()
    left_bits, right_bits = width // 2, width - width // 2
    while True:
        left, right = divmod(position, 1 << right_bits)
        for i in range(8):
            if i % 2 == 0:
                left ^= mixed(derived(key, 3, n, i) + right) % (1 << left_bits)
            else:
                right ^= mixed(derived(key, 3, n, i) + left) % (1 << right_bits)
        position = (left << right_bits) + right
        if position < n:
            return position


# --- seeds ---


@given(WORDS)
@tries(100)
def test_finalise_is_the_output_function_of_splitmix64(word):
    assert finalise(word) == mixed(word)
    assert finalise_array(u64([word])).tolist() == [mixed(word)]


def test_the_first_outputs_of_splitmix64_are_the_published_ones():
    """For seed 1234567, as in the reference implementation by Sebastiano Vigna."""
    gamma = 0x9E3779B97F4A7C15
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [finalise(1234567 + i * gamma) for i in range(1, 5)] == published


@given(SEEDS, st.integers(0, 9), EPOCHS, WORDS)
@tries(100)
def test_derive_is_its_formula(seed, purpose, first, second):
    assert derive(seed, purpose, first, second) == derived(seed, purpose, first, second)


@given(SEEDS, EPOCHS, st.lists(st.integers(0, LENGTH_LIMIT + (1 << 31)), max_size=30))
@tries(100)
def test_a_sample_s_seed_is_its_formula_one_by_one_and_many_at_once(seed, epoch, ordinals):
    expected = [seed_of(seed, epoch, ordinal) for ordinal in ordinals]
    assert [sample_seed(seed, epoch, ordinal) for ordinal in ordinals] == expected
    assert sample_seeds(seed, epoch, u64(ordinals)).tolist() == expected
    assert all(0 <= each < 1 << 63 for each in expected)


@given(SEEDS, EPOCHS, EPOCHS, st.integers(0, (1 << 31) - 1))
@tries(100)
def test_a_batch_s_seed_and_an_epoch_s_key_are_their_formulas(seed, epoch, step, rank):
    assert batch_seed(seed, epoch, step, rank) == batch_seed_of(seed, epoch, step, rank)
    assert order_key(seed, epoch) == derived(seed, 3, epoch, 0)


def test_seeds_are_those_that_were_given():
    """Another value here gives every user other batches: raise ORDER_VERSION."""
    assert (SAMPLE, BATCH, ORDER, DEVICE) == (1, 2, 3, 4)
    assert {
        (seed, epoch): (
            [sample_seed(seed, epoch, ordinal) for ordinal in range(2)],
            batch_seed(seed, epoch, 5, 1),
            order_key(seed, epoch),
        )
        for seed, epoch in GOLDEN_SEEDS
    } == GOLDEN_SEEDS


def test_no_two_seeds_are_alike():
    """Of the samples, batches and epochs of several seeds, all of them: 63 bits hold them without a collision."""
    seeds = [
        each
        for seed, epoch in itertools.product(range(4), range(4))
        for each in [
            *sample_seeds(seed, epoch, np.arange(2000, dtype=np.uint64)).tolist(),
            *(batch_seed(seed, epoch, step, rank) for step in range(20) for rank in range(4)),
            order_key(seed, epoch),
        ]
    ]
    assert len(set(seeds)) == len(seeds)


def test_seeds_of_neighbours_share_half_of_their_bits():
    for seed, epoch in [(0, 0), (0, 1), (1, 0), ((1 << 63) - 1, 12)]:
        seeds = sample_seeds(seed, epoch, np.arange(4000, dtype=np.uint64)).tolist()
        differing = [(a ^ b).bit_count() for a, b in itertools.pairwise(seeds)]
        assert abs(np.mean(differing) - 31.5) < 0.5
        ones = [sum(each >> bit & 1 for each in seeds) for bit in range(63)]
        assert all(abs(count - 2000) < 5 * math.sqrt(1000) for count in ones)


# --- the permutation ---

BOUNDARIES = sorted(
    {1, 2, 3, SMALL - 1, SMALL, SMALL + 1, 10_007} | {(1 << bits) + off for bits in range(2, 15) for off in (-1, 0, 1)}
)


@pytest.mark.parametrize("n", BOUNDARIES)
@pytest.mark.parametrize("key", [0, order_key(7, 3), (1 << 64) - 1])
def test_every_element_comes_once(n, key):
    taken = Permutation(key, n).take(np.arange(n, dtype=np.uint64))
    assert taken.dtype == np.uint64
    assert np.array_equal(np.sort(taken), np.arange(n))


@pytest.mark.parametrize("n", BOUNDARIES)
def test_one_by_one_is_the_same_as_many_at_once(n):
    permutation = Permutation(order_key(1, n), n)
    positions = sorted({0, n - 1, n // 2, *range(0, n, max(1, n // 50))})
    assert [permutation.at(position) for position in positions] == permutation.take(u64(positions)).tolist()


@given(WORDS, st.integers(1, LENGTH_LIMIT), st.data())
@tries(150)
def test_any_size_is_permuted_within_itself_without_repeats(key, n, data):
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))
    permutation = Permutation(key, n)
    taken = permutation.take(u64(positions)).tolist()
    assert [permutation.at(position) for position in positions] == taken
    assert len(set(taken)) == len(taken)
    assert all(0 <= element < n for element in taken)


@given(WORDS, st.integers(1, SMALL // 8) | st.integers(SMALL + 1, LENGTH_LIMIT), st.data())
@tries(150)
def test_the_permutation_is_its_formula(key, n, data):
    position = data.draw(st.integers(0, n - 1))
    assert Permutation(key, n).at(position) == permuted(key, n, position)


@pytest.mark.parametrize("n", [SMALL - 1, SMALL, SMALL + 1, 1 << 12, (1 << 12) + 1, LENGTH_LIMIT])
def test_the_formula_holds_at_its_boundaries(n):
    permutation = Permutation(order_key(0, 1), n)
    for position in (0, 1, n // 2, n - 1):
        assert permutation.at(position) == permuted(order_key(0, 1), n, position)


def test_permutations_are_those_that_were_given():
    """Another value here gives every user other batches: raise ORDER_VERSION."""
    assert {
        (key, n): Permutation(key, n).take(np.arange(min(n, 8), dtype=np.uint64)).tolist() for key, n in GOLDEN_ORDERS
    } == GOLDEN_ORDERS
    assert {
        (key, n): [permuted(key, n, position) for position in range(min(n, 8))] for key, n in GOLDEN_ORDERS
    } == GOLDEN_ORDERS


@pytest.mark.parametrize("n", [0, 1, 5, SMALL, SMALL + 1, 1 << 40])
def test_positions_outside_are_an_index_error(n):
    permutation = Permutation(3, n)
    for position in (-1, n, n + 1, 1 << 64):
        with pytest.raises(IndexError, match=f"position {position} of a permutation of {n}"):
            permutation.at(position)


@pytest.mark.parametrize("n", [0, 7, 5000])
def test_no_positions_have_no_elements(n):
    assert Permutation(3, n).take(u64([])).tolist() == []


@pytest.mark.parametrize("n", [100, 5000])
def test_positions_may_come_in_any_order_and_repeat_and_are_left_alone(n):
    permutation = Permutation(3, n)
    positions = u64([9, 3, 3, n - 1, 0, 9])
    assert permutation.take(positions).tolist() == [permutation.at(int(position)) for position in positions]
    assert positions.tolist() == [9, 3, 3, n - 1, 0, 9]
    before = permutation.at(9)
    permutation.take(positions)[:] = 0
    assert permutation.at(9) == before, "what was taken is the taker's own"


@pytest.mark.parametrize("n", [30, SMALL, SMALL + 1, 5000, 1 << 40])
def test_keys_epochs_and_seeds_each_have_their_own_order(n):
    keys = [order_key(seed, epoch) for seed in range(10) for epoch in range(10)]
    orders = {tuple(Permutation(key, n).take(np.arange(30, dtype=np.uint64)).tolist()) for key in keys}
    assert len(orders) == 100


def test_lengths_have_orders_of_their_own():
    """Not one order cut to length: range(n) and range(n + 1) differ at most places."""
    for n in (1000, 5000):
        here, there = (Permutation(5, m).take(np.arange(n, dtype=np.uint64)) for m in (n, n + 1))
        assert np.count_nonzero(here == there) < n // 20


# --- fairness ---

REJECTED = 5.0
"""Standard deviations. Of a few hundred scores of fair permutations none comes near; broken ones are far beyond."""


def score(counts: np.ndarray, expected: np.ndarray) -> float:
    """The chi-square of these counts, as standard deviations from its mean; about normal for many cells."""
    cells = counts.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - (cells - 1)) / math.sqrt(2 * (cells - 1))


def cell_sizes(n: int, cells: int) -> np.ndarray:
    return np.bincount(np.arange(n) * cells // n, minlength=cells).astype(float)


def place_scores(samples: np.ndarray, n: int, cells: int = 50) -> list[float]:
    """For each column: is every element equally likely at this position?"""
    expected = cell_sizes(n, cells) * len(samples) / n
    return [score(np.bincount(column * cells // n, minlength=cells), expected) for column in samples.T]


def difference_scores(samples: np.ndarray, n: int, cells: int = 49) -> list[float]:
    """For each two columns side by side: is every difference of their elements equally likely?"""
    expected = cell_sizes(n - 1, cells) * len(samples) / (n - 1)
    differences = np.diff(samples, axis=1) % n - 1
    return [score(np.bincount(column * cells // (n - 1), minlength=cells), expected) for column in differences.T]


def pair_scores(samples: np.ndarray, n: int, cells: int = 6) -> list[float]:
    """For each two columns side by side: does the one element tell anything of the other?"""
    sizes = cell_sizes(n, cells)
    expected = (np.outer(sizes, sizes) - np.diag(sizes)) * len(samples) / (n * (n - 1))
    binned = samples * cells // n
    joint = binned[:, :-1] * cells + binned[:, 1:]
    return [score(np.bincount(column, minlength=cells**2), expected.ravel()) for column in joint.T]


def rise_scores(samples: np.ndarray, n: int) -> list[float]:
    """For each two columns side by side: does the later element exceed the earlier one half of the time?"""
    rises = (np.diff(samples, axis=1) > 0).sum(axis=0)
    return [float(abs(each - len(samples) / 2) / math.sqrt(len(samples) / 4)) for each in rises]


STATISTICS = {"place": place_scores, "difference": difference_scores, "pair": pair_scores, "rise": rise_scores}


def positions_of(n: int) -> list[int]:
    """Neighbours, and positions that differ only in the left part of a Feistel word, or only in the right one."""
    right = 1 << (n - 1).bit_length() - (n - 1).bit_length() // 2
    return [0, 1, 2, right - 1, right, right + 1, 1, 1 + right, n // 2, n // 2 + 1, n - 2, n - 1]


def samples_of(permutation: object, n: int, keys: int) -> np.ndarray:
    """One row a key: the elements at positions_of(n)."""
    positions = u64(positions_of(n))
    return np.array([permutation(order_key(0, epoch), n).take(positions) for epoch in range(keys)]).astype(np.int64)


@pytest.mark.parametrize("n", [50, SMALL, SMALL + 1, 5000])
def test_every_place_and_every_pair_is_fair(n):
    samples = samples_of(Permutation, n, 3000)
    found = {name: max(statistic(samples, n)) for name, statistic in STATISTICS.items()}
    assert all(worst < REJECTED for worst in found.values()), found


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_statistics_reject_a_network_of_too_few_rounds(monkeypatch, rounds):
    monkeypatch.setattr(order, "ROUNDS", rounds)
    samples = samples_of(Permutation, 5000, 1000)
    found = {name: max(statistic(samples, 5000)) for name, statistic in STATISTICS.items()}
    assert found["pair"] > 10 * REJECTED, found
    if rounds == 1:
        assert found["place"] > 10 * REJECTED, found


@dataclasses.dataclass
class Broken:
    """What a careless shuffle does instead: `how` names it."""

    how: str
    key: int
    n: int

    def take(self, positions: np.ndarray) -> np.ndarray:
        match self.how:
            case "identity":
                return positions
            case "rotation":
                return (positions + u64(self.key % self.n)) % u64(self.n)
            case "blocks":  # blocks of ten change places, their samples stay in order
                block = (positions // u64(10) * u64(10) + u64(self.key // 10 * 10 % self.n)) % u64(self.n)
                return block + positions % u64(10)
        raise AssertionError(self.how)


@pytest.mark.parametrize(
    ("how", "statistic"),
    [("identity", "place"), ("identity", "rise"), ("rotation", "difference"), ("rotation", "pair"), ("blocks", "rise")],
)
@pytest.mark.parametrize("n", [50, 5000])
def test_each_statistic_rejects_what_it_looks_for(how, statistic, n):
    samples = samples_of(lambda key, n: Broken(how, key, n), n, 1000)
    assert max(STATISTICS[statistic](samples, n)) > 2 * REJECTED


def test_all_orders_of_five_are_equally_likely():
    positions = np.arange(5, dtype=np.uint64)
    found = Counter(tuple(Permutation(order_key(0, epoch), 5).take(positions).tolist()) for epoch in range(6000))
    assert len(found) == 120
    assert score(np.array(list(found.values())), np.full(120, 50.0)) < REJECTED


@pytest.mark.parametrize(("n", "keys"), [(40, 2000), (5000, 300)])
def test_about_one_element_stays_one_follows_its_neighbour_and_one_stays_from_epoch_to_epoch(n, keys):
    """Each count is of mean 1 and variance 1, as in a shuffle that has no structure."""
    positions = np.arange(n, dtype=np.uint64)
    orders = [Permutation(order_key(0, epoch), n).take(positions) for epoch in range(keys)]
    five_sigma = 5 / math.sqrt(keys)
    fixed = [np.count_nonzero(each == positions) for each in orders]
    following = [np.count_nonzero(each[1:] == each[:-1] + u64(1)) for each in orders]
    agreeing = [np.count_nonzero(a == b) for a, b in itertools.pairwise(orders)]
    for counts in (fixed, following, agreeing):
        assert abs(np.mean(counts) - 1) < five_sigma
        assert 0.5 < np.var(counts) < 2


# --- cost ---


def peak_bytes(work: object) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


LARGE = [10**9, 1 << 40, (1 << 40) + 1, LENGTH_LIMIT]


@pytest.mark.parametrize("n", LARGE)
def test_a_permutation_of_any_size_takes_no_memory_for_its_size(n):
    def work() -> None:
        permutation = Permutation(order_key(0, 0), n)
        permutation.at(n - 1)
        permutation.take(np.arange(n - 1000, n, dtype=np.uint64))

    assert peak_bytes(work) < 1 << 18


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize("kind", ["shuffle", "sequential"])
def test_a_plan_of_any_length_takes_no_memory_for_its_length(n, kind):
    def work() -> None:
        plan = BatchPlan(spec_of(n, 256, kind))
        for epoch, step in [(0, 0), (5, plan.schedule.steps // 2), (5, plan.schedule.steps - 2)]:
            assert len(plan.rows(epoch, step, 0, 256).indices) == 256

    assert peak_bytes(work) < 2 << 20


def test_a_plan_that_walks_on_keeps_a_bounded_number_of_blocks():
    plan = BatchPlan(spec_of(10**9, BLOCK, "shuffle"))

    def walk(steps: int) -> None:
        for step in range(steps):
            plan.rows(step, step, 0, BLOCK)

    walk(8)
    assert peak_bytes(lambda: walk(20)) < 2 << 20


@pytest.mark.parametrize("n", [SMALL + 1, (1 << 20) + 1, (1 << 40) + 1])
def test_the_walk_into_range_is_short_even_just_above_a_power_of_two(monkeypatch, n):
    """Fewer than two encryptions on average."""
    calls = itertools.count()
    encrypt = Permutation._encrypt

    def counted(self, word):
        next(calls)
        return encrypt(self, word)

    monkeypatch.setattr(Permutation, "_encrypt", counted)
    permutation = Permutation(order_key(0, 0), n)
    for position in range(1000):
        permutation.at(position * (n // 1000))
    assert 1900 < next(calls) < 2200


# --- the schedule ---


def schedules_of(length: int, batch_size: int, world_size: int, *, drop_last: bool, drop_uneven: bool):
    return [Schedule(length, batch_size, drop_last, rank, world_size, drop_uneven) for rank in range(world_size)]


def first_ordinal(schedule: Schedule, step: int) -> int:
    """The ordinal of row 0; row k follows after k * world_size."""
    return step * schedule.rows_per_batch * schedule.world_size + schedule.rank


def ordinals_of(schedule: Schedule) -> list[int]:
    return [
        first_ordinal(schedule, step) + row * schedule.world_size
        for step in range(schedule.steps)
        for row in range(schedule.rows(step))
    ]


shapes = st.fixed_dictionaries(
    {
        "length": st.integers(0, 200),
        "batch_size": st.integers(0, 20),
        "world_size": st.integers(1, 9),
        "drop_last": st.booleans(),
        "drop_uneven": st.booleans(),
    }
)


@given(shapes)
@tries(200)
def test_ranks_share_the_padded_epoch_exactly(shape):
    shape["drop_last"] = False
    found = sorted(ordinal for schedule in schedules_of(**shape) for ordinal in ordinals_of(schedule))
    whole, world_size = shape["length"], shape["world_size"]
    padded = whole // world_size * world_size if shape["drop_uneven"] else -(-whole // world_size) * world_size
    assert found == list(range(padded))


@given(shapes)
@tries(200)
def test_dropping_the_last_batch_leaves_full_ones_only_and_the_same_for_every_rank(shape):
    shape["drop_last"] = True
    ranks = schedules_of(**shape)
    assert len({schedule.steps for schedule in ranks}) == 1
    for schedule in ranks:
        kept = dataclasses.replace(schedule, drop_last=False)
        assert {schedule.rows(step) for step in range(schedule.steps)} <= {schedule.rows_per_batch}
        assert ordinals_of(schedule) == ordinals_of(kept)[: schedule.steps * schedule.rows_per_batch]
        assert kept.steps - schedule.steps == (1 if kept.rank_length % kept.rows_per_batch else 0)


@given(shapes)
@tries(200)
def test_no_batch_is_empty_and_only_the_last_is_smaller(shape):
    for schedule in schedules_of(**shape):
        rows = [schedule.rows(step) for step in range(schedule.steps)]
        assert all(each == schedule.rows_per_batch for each in rows[:-1])
        assert all(1 <= each <= schedule.rows_per_batch for each in rows)
        assert sum(rows) == len(ordinals_of(schedule)) <= schedule.rank_length


@pytest.mark.parametrize("world_size", range(1, 8))
@pytest.mark.parametrize("drop_uneven", [False, True])
def test_ranks_have_what_torch_s_distributed_sampler_gives_them(world_size, drop_uneven):
    for length in [*range(30), 100, 101]:
        for rank in range(world_size):
            sampler = DistributedSampler(range(length), world_size, rank, shuffle=False, drop_last=drop_uneven)
            spec = spec_of(length, 0, rank=rank, world_size=world_size, drop_uneven=drop_uneven)
            assert schedule_of(spec).rank_length == len(sampler)
            assert indices_of(spec) == [[index] for index in sampler], (length, rank)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", range(1, 8))
def test_an_epoch_has_as_many_steps_as_the_dataloader(batch_size, drop_last):
    for length in range(30):
        loader = DataLoader(range(length), batch_size, drop_last=drop_last)
        assert Schedule(length, batch_size, drop_last).steps == len(loader)


def test_without_batching_an_epoch_has_as_many_steps_as_the_dataloader():
    for length in range(5):
        assert Schedule(length, 0).steps == len(DataLoader(range(length), batch_size=None))


@given(shapes)
@tries(60)
def test_batches_are_those_of_a_dataloader_with_a_distributed_sampler(shape):
    shape["batch_size"] = shape["batch_size"] or 1
    for rank in range(shape["world_size"]):
        sampler = DistributedSampler(
            range(shape["length"]), shape["world_size"], rank, shuffle=False, drop_last=shape["drop_uneven"]
        )
        loader = DataLoader(
            range(shape["length"]),
            shape["batch_size"],
            sampler=sampler,
            drop_last=shape["drop_last"],
            collate_fn=list,
        )
        spec = spec_of(**shape, rank=rank)
        assert schedule_of(spec).steps == len(loader)
        assert indices_of(spec) == list(loader)


def test_counts_beyond_32_bits_are_exact():
    schedule = Schedule(LENGTH_LIMIT - 1, 256, False, 7, 8, False)
    last = schedule.steps - 1
    assert schedule.rank_length == LENGTH_LIMIT // 8
    assert first_ordinal(schedule, last) + (schedule.rows(last) - 1) * 8 == LENGTH_LIMIT - 1


# --- the batch plan ---


def whole(plan: BatchPlan, epoch: int, step: int) -> PlannedRows:
    return plan.rows(epoch, step, 0, plan.schedule.rows(step))


def indices_of(spec: StreamSpec, epoch: int = 0) -> list[list[int]]:
    plan = BatchPlan(spec)
    return [whole(plan, epoch, step).indices.tolist() for step in range(plan.schedule.steps)]


def assert_equal(here: PlannedRows, there: PlannedRows) -> None:
    for name in ("indices", "ordinals", "seeds"):
        assert getattr(here, name).dtype == np.uint64
        assert np.array_equal(getattr(here, name), getattr(there, name)), name


@given(shapes, st.sampled_from(["sequential", "shuffle"]), SEEDS, st.integers(0, 1000))
@tries(100)
def test_a_batch_is_its_formulas(shape, kind, seed, epoch):
    for rank in range(shape["world_size"]):
        spec = spec_of(**shape, order=kind, seed=seed, rank=rank)
        plan = BatchPlan(spec)
        for step in range(plan.schedule.steps)[-2:]:
            rows = whole(plan, epoch, step)
            ordinals = [first_ordinal(plan.schedule, step) + k * spec.world_size for k in range(len(rows.indices))]
            assert len(ordinals) == plan.schedule.rows(step)
            assert rows.ordinals.tolist() == ordinals
            assert rows.seeds.tolist() == [seed_of(seed, epoch, ordinal) for ordinal in ordinals]
            positions = [ordinal % spec.length for ordinal in ordinals]
            if kind == "shuffle":
                shuffled = Permutation(derived(seed, 3, epoch, 0), spec.length)
                assert rows.indices.tolist() == [shuffled.at(position) for position in positions]
            else:
                assert rows.indices.tolist() == positions
            assert plan.batch_seed(epoch, step) == batch_seed(seed, epoch, step, rank)


def test_batches_are_those_that_were_given():
    """Another value here gives every user other batches: raise ORDER_VERSION."""
    for (kind, seed, length, batch_size, rank, world_size), (epoch, step), indices, seeds in GOLDEN_BATCHES:
        plan = BatchPlan(spec_of(length, batch_size, kind, seed, rank=rank, world_size=world_size))
        rows = whole(plan, epoch, step)
        assert (rows.indices.tolist(), rows.seeds.tolist()) == (indices, seeds)


@pytest.mark.parametrize("drop_uneven", [False, True])
@pytest.mark.parametrize("length", [13, 5001])
def test_shuffled_ranks_have_every_sample_once_but_for_the_padding(length, drop_uneven):
    world_size = 4
    taken = Counter(
        index
        for rank in range(world_size)
        for batch in indices_of(
            spec_of(length, 5, "shuffle", 9, rank=rank, world_size=world_size, drop_uneven=drop_uneven), epoch=2
        )
        for index in batch
    )
    first = Permutation(order_key(9, 2), length)
    if drop_uneven:
        assert set(taken.values()) == {1}
        assert set(range(length)) - set(taken) == {first.at(length - 1)}
    else:
        assert set(taken) == set(range(length))
        repeated = {index for index, times in taken.items() if times > 1}
        assert repeated == {first.at(i) for i in range(-length % world_size)}


@given(
    st.sampled_from(["sequential", "shuffle"]),
    st.integers(1, 100),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), min_size=2, max_size=4),
)
@tries(60)
def test_another_batch_size_or_world_size_changes_no_sample_s_index_or_seed(kind, length, ways):
    """A sample is known by its ordinal."""
    found: dict[int, tuple[int, int]] = {}
    for batch_size, world_size in ways:
        for rank in range(world_size):
            plan = BatchPlan(spec_of(length, batch_size, kind, 3, rank=rank, world_size=world_size))
            for step in range(plan.schedule.steps):
                rows = whole(plan, 4, step)
                for ordinal, index, seed in zip(rows.ordinals.tolist(), rows.indices.tolist(), rows.seeds.tolist()):
                    assert found.setdefault(ordinal, (index, seed)) == (index, seed)
    assert set(range(length)) <= set(found)


LONG = spec_of(5 * BLOCK + 100, BLOCK - 1000, "shuffle", 11, rank=1, world_size=2)


@given(st.integers(0, 3), st.data())
@tries(60)
def test_pieces_make_the_whole_batch_across_blocks_too(step, data):
    plan, other = BatchPlan(LONG), BatchPlan(LONG)
    rows = plan.schedule.rows(step)
    bounds = [block * BLOCK + off - step * (BLOCK - 1000) for block in range(4) for off in (-1, 0, 1)]
    inside = st.sampled_from([bound for bound in bounds if 0 < bound < rows] or [1]) | st.integers(1, rows - 1)
    cuts = [0, *sorted(data.draw(st.sets(inside, max_size=5))), rows]
    pieces = [plan.rows(6, step, begin, end) for begin, end in itertools.pairwise(cuts)]
    joined = PlannedRows(
        np.concatenate([piece.indices for piece in pieces]),
        np.concatenate([piece.ordinals for piece in pieces]),
        np.concatenate([piece.seeds for piece in pieces]),
    )
    assert_equal(joined, whole(other, 6, step))


def test_a_batch_of_many_blocks_is_its_rows():
    spec = spec_of(3 * BLOCK + 7, 3 * BLOCK + 7, "shuffle", 5)
    rows = whole(BatchPlan(spec), 1, 0)
    assert np.array_equal(rows.ordinals, np.arange(3 * BLOCK + 7))
    assert np.array_equal(rows.indices, Permutation(order_key(5, 1), spec.length).take(rows.ordinals))
    assert np.array_equal(rows.seeds, sample_seeds(5, 1, rows.ordinals))


def test_the_end_of_a_very_long_epoch_is_exact():
    """Beyond the 53 bits of a float."""
    spec = spec_of(LENGTH_LIMIT - 3, 1000)
    plan = BatchPlan(spec)
    last = plan.schedule.steps - 1
    rows = whole(plan, 0, last)
    assert rows.indices.tolist() == list(range(last * 1000, LENGTH_LIMIT - 3))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
@tries(40)
def test_a_batch_does_not_depend_on_what_was_planned_before(walk):
    """Resuming at a position equals never having stopped."""
    used = BatchPlan(LONG)
    for epoch, step in walk:
        assert_equal(whole(used, epoch, step), whole(BatchPlan(LONG), epoch, step))


def test_epochs_are_ordered_anew_and_seeded_anew():
    plan = BatchPlan(spec_of(5000, 100, "shuffle"))
    batches = [whole(plan, epoch, 0) for epoch in range(20)]
    assert len({tuple(rows.indices.tolist()) for rows in batches}) == 20
    assert len({seed for rows in batches for seed in rows.seeds.tolist()}) == 2000


@pytest.mark.parametrize("kind", ["sequential", "shuffle"])
def test_what_a_caller_does_to_its_rows_reaches_no_other_caller(kind):
    """Or cannot be done at all."""
    plan = BatchPlan(spec_of(100, 10, kind))
    before = [getattr(whole(BatchPlan(spec_of(100, 10, kind)), 0, 0), name).tolist() for name in ("indices", "seeds")]
    rows = whole(plan, 0, 0)
    for array in (rows.indices, rows.ordinals, rows.seeds):
        if array.flags.writeable:
            array[:] = 77
    after = [getattr(whole(plan, 0, 0), name).tolist() for name in ("indices", "seeds")]
    assert after == before


def test_a_piece_of_no_rows_is_empty():
    rows = BatchPlan(spec_of(100, 10)).rows(0, 0, 3, 3)
    assert (rows.indices.tolist(), rows.ordinals.tolist(), rows.seeds.tolist()) == ([], [], [])


GOLDEN_SEEDS = {
    # (seed, epoch): seeds of the first two samples, seed of batch 5 on rank 1, key of the order
    (0, 0): ([7557061629226788251, 871958892221420579], 7989276774210345167, 887372448136608204),
    (0, 1): ([9030583759491911620, 1433429799476562936], 3773835841208522755, 5227235786923856209),
    ((1 << 63) - 1, 12): ([6624148566905631345, 1822417936764931531], 6837938648127150901, 9003669609864437429),
}
GOLDEN_ORDERS = {
    # (key, n): the first elements
    (0, 1): [0],
    (0, 10): [8, 5, 2, 4, 9, 7, 6, 0],
    (12_345, 2048): [1442, 1698, 4, 390, 813, 597, 1241, 2004],
    (0, 2049): [1881, 1889, 531, 459, 320, 731, 691, 594],
    (12_345, 5000): [1155, 3804, 2263, 4514, 4084, 1420, 1659, 1716],
    ((1 << 64) - 1, 1 << 40): [
        *(984977695748, 18713079872, 268258715746, 370096499876),
        *(382032672879, 858212221255, 139679567789, 487954503768),
    ],
}
GOLDEN_BATCHES = [
    # (order, seed, length, batch size, rank, world size), (epoch, step), indices, seeds
    (("sequential", 0, 10, 4, 0, 1), (0, 2), [8, 9], [6014691019795510146, 6620521062416528305]),
    (("shuffle", 7, 10, 3, 1, 2), (5, 1), [1, 9], [2923772016379839966, 2527209316925954264]),
    (
        ("shuffle", 7, 1_281_167, 4, 3, 8),
        (90, 40_000),
        [122420, 942590, 529794, 713111],
        [5242123831390651041, 3460249671241887473, 4543812117069791011, 7445927364466890712],
    ),
]
