"""Computes every seed of a stream, by documented formulas (docs/formats.md repeats them for other implementations).

All arithmetic is on unsigned 64-bit words. `finalise` is the output function of SplitMix64 (Steele, Lea, Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014; constants by David Stafford, variant 13).

    f(x) = finalise(x + GAMMA)
    finalise(x): x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
    GAMMA = 0x9E3779B97F4A7C15
    derive(seed, purpose, a, b) = f(f(f(f(seed) ^ purpose) ^ a) ^ b)

    sample seed = derive(seed, 1, epoch, ordinal) >> 1
    batch seed  = f(derive(seed, 2, epoch, step) ^ rank) >> 1
    order key   = derive(seed, 3, epoch, 0)
    substitute  = f(derive(seed, 5, epoch, ordinal) ^ attempt) mod length        attempt = 1, 2, ... SUBSTITUTES
    sampler seed = derive(seed, 6, epoch, rank) >> 1
    shard seed  = f(derive(seed, 7, epoch, number) ^ rank) >> 1
    worker seed = derive(seed, 8, worker_index, rank) >> 1

A sample's seed depends on the stream's seed, the epoch and the sample's ordinal and on nothing else: not on the batch
size, the rank, the number of workers or their order. A sample that takes a bad one's place (on_error) is the one at
index `substitute`; it is seeded as the sample in whose place it stands. Where a sampler decides the order, it is the
key at row `substitute` of the same batch, with the batch's samples as length. Such a sampler's own draws from the
global generators begin with the sampler seed in each epoch. Iterable datasets have neither ordinals nor indices: the
global generators begin with the shard seed of `number` = shard when a shard's iterator is made, and of `number` =
shards + step when the samples of a batch are taken from it. With the worker seed they begin when worker_init_fn is
called in the worker of this `worker_index`, and get_worker_info() returns it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefetchd.wire.seed_words import GAMMA, derive, finalise

U64 = npt.NDArray[np.uint64]

# Purposes keep families of seeds apart. Number 4 is DEVICE, of wire.seed_words.
SAMPLE, BATCH, ORDER, SUBSTITUTE, SAMPLER, SHARD, WORKER = 1, 2, 3, 5, 6, 7, 8

SUBSTITUTES = 8
"""How many samples are tried in a bad one's place."""


def finalise_array(words: U64) -> U64:
    """Applies `finalise` to each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = words ^ (words >> np.uint64(31))
    return mixed


def sample_seed(seed: int, epoch: int, ordinal: int) -> int:
    """Returns the seed of one sample: 0 <= seed < 2**63."""
    return derive(seed, SAMPLE, epoch, ordinal) >> 1


def sample_seeds(seed: int, epoch: int, ordinals: U64) -> U64:
    """Computes `sample_seed` of each ordinal."""
    word = finalise(seed + GAMMA)
    for part in (SAMPLE, epoch):
        word = finalise((word ^ part) + GAMMA)
    seeds: U64 = finalise_array((ordinals ^ np.uint64(word)) + np.uint64(GAMMA)) >> np.uint64(1)
    return seeds


def batch_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """Returns the seed for collate_fn, __getitems__ and other work on a batch as a whole: 0 <= seed < 2**63."""
    return finalise((derive(seed, BATCH, epoch, step) ^ rank) + GAMMA) >> 1


def substitute(seed: int, epoch: int, ordinal: int, attempt: int, length: int) -> int:
    """Returns the dataset index that is tried, at the `attempt`-th attempt, in place of the sample at `ordinal`."""
    return finalise((derive(seed, SUBSTITUTE, epoch, ordinal) ^ attempt) + GAMMA) % length


def sampler_seed(seed: int, epoch: int, rank: int) -> int:
    """Returns the seed of the global generators when a sampler begins an epoch: 0 <= seed < 2**63."""
    return derive(seed, SAMPLER, epoch, rank) >> 1


def shard_seed(seed: int, epoch: int, number: int, rank: int) -> int:
    """Returns the seed of the global generators for an iterable dataset's shard or batch: 0 <= seed < 2**63."""
    return finalise((derive(seed, SHARD, epoch, number) ^ rank) + GAMMA) >> 1


def worker_seed(seed: int, worker_index: int, rank: int) -> int:
    """Returns the seed that the worker `worker_index` begins with: 0 <= seed < 2**63."""
    return derive(seed, WORKER, worker_index, rank) >> 1


def order_key(seed: int, epoch: int) -> int:
    """Returns the key of an epoch's permutation (plan.order)."""
    return derive(seed, ORDER, epoch, 0)
