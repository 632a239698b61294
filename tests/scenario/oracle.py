"""The batches of a stream, computed in one process from the documented formulas (docs/formats.md) alone.

Shares no code with the product: another implementation of the same few lines.
"""

from __future__ import annotations

import copy
import itertools
import random

import numpy as np
import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import default_collate

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
SAMPLE, BATCH, ORDER, SUBSTITUTE, SHARD = 1, 2, 3, 5, 7


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


def batch_at(dataset, epoch, step, *, batch_size, seed=0, shuffle=False, order=None, collate_fn=default_collate):
    """One batch of an epoch that no ranks share, whatever collates it; `order` is a sampler's."""
    length = len(dataset)
    if order is None:
        order = shuffled(seed, epoch, length) if shuffle else range(length)
    samples = []
    for ordinal in range(step * batch_size, min((step + 1) * batch_size, length)):
        seed_all(derive(seed, SAMPLE, epoch, ordinal) >> 1)
        samples.append(dataset[order[ordinal]])
    seed_all(finalise(derive(seed, BATCH, epoch, step) + GAMMA) >> 1)
    return collate_fn(samples)


def iterable_epoch(dataset, epoch, shards, *, batch_size, seed=0, collate_fn=default_collate):
    """All batches of an iterable dataset's epoch, by step."""
    found = {}
    for shard in range(shards):
        step = shard
        own = copy.deepcopy(dataset)
        try:
            torch_worker._worker_info = torch_worker.WorkerInfo(id=shard, num_workers=shards, seed=0, dataset=own)
            _seed_shard(seed, epoch, shard)
            iterator = iter(own)
            while True:
                _seed_shard(seed, epoch, shards + step)
                samples = list(itertools.islice(iterator, batch_size))
                if samples:
                    found[step] = samples
                if len(samples) < batch_size:
                    break
                step += shards
        finally:
            torch_worker._worker_info = None
    for step, samples in found.items():
        seed_all(finalise(derive(seed, BATCH, epoch, step) + GAMMA) >> 1)
        found[step] = collate_fn(samples)
    return found


def _seed_shard(seed, epoch, place):
    seed_all(finalise(derive(seed, SHARD, epoch, place) + GAMMA) >> 1)


def batches_without_bad(
    dataset, epoch, on_error, *, batch_size, seed=0, shuffle=False, collate_fn=default_collate, gathered=False
):
    """All batches of an epoch that no ranks share, with samples that raise left out or replaced, as `on_error` says;
    an exception in the place of a batch of which nothing is left. `gathered`: the dataset is asked for all samples of a
    batch at once, and for one by one when that raises."""
    length = len(dataset)
    order = shuffled(seed, epoch, length) if shuffle else range(length)
    batches = []
    for begin in range(0, length, batch_size):
        ordinals = range(begin, min(begin + batch_size, length))
        of_batch = finalise(derive(seed, BATCH, epoch, begin // batch_size) + GAMMA) >> 1
        samples = None
        if gathered:
            seed_all(of_batch)
            try:
                samples = dataset.__getitems__([order[ordinal] for ordinal in ordinals])
            except Exception:
                samples = None
        if samples is None:
            found = [_sample(dataset, epoch, ordinal, order[ordinal], on_error, seed, gathered) for ordinal in ordinals]
            samples = [each for each in found if not isinstance(each, Exception)]
            if not samples:
                batches.append(found[0])
                continue
        seed_all(of_batch)
        batches.append(collate_fn(samples))
    return batches


def _sample(dataset, epoch, ordinal, index, on_error, seed, gathered):
    error = None
    for attempt in range(9 if on_error == "substitute" else 1):
        if attempt:
            index = finalise((derive(seed, SUBSTITUTE, epoch, ordinal) ^ attempt) + GAMMA) % len(dataset)
        seed_all(derive(seed, SAMPLE, epoch, ordinal) >> 1)
        try:
            return dataset.__getitems__([index])[0] if gathered else dataset[index]
        except Exception as raised:
            error = error or raised
    return error
