"""The batches of a stream, computed in one process from the documented formulas (docs/formats.md) alone.

Shares no code with the product: another implementation of the same few lines.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.utils.data import default_collate

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
SAMPLE, BATCH, ORDER = 1, 2, 3


def finalise(word):
    word &= MASK
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def derive(seed, purpose, first, second):
    word = finalise(seed + GAMMA)
    for part in (purpose, first, second):
        word = finalise((word ^ part) + GAMMA)
    return word


def shuffled(seed, epoch, length):
    """The epoch's order, for lengths up to 2048."""
    key = derive(seed, ORDER, epoch, 0)
    return sorted(range(length), key=lambda position: (derive(key, ORDER, length, position), position))


def seed_all(seed):
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed >> 31)
    random.seed(seed)


def epoch_batches(dataset, epoch, *, batch_size, seed=0, shuffle=False, drop_last=False, rank=0, world_size=1):
    """All batches of one rank's epoch, padded as DistributedSampler pads, default-collated."""
    length = len(dataset)
    order = shuffled(seed, epoch, length) if shuffle else range(length)
    ordinals = range(rank, -(-length // world_size) * world_size, world_size)
    batches = []
    for begin in range(0, len(ordinals), batch_size):
        chosen = ordinals[begin : begin + batch_size]
        if drop_last and len(chosen) < batch_size:
            break
        samples = []
        for ordinal in chosen:
            seed_all(derive(seed, SAMPLE, epoch, ordinal) >> 1)
            samples.append(dataset[order[ordinal % length]])
        batches.append(default_collate(samples))
    return batches
