"""This module knows what torch's own samplers do, as far as that is known without running them: their order, and what
they draw."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

# Exact types in all of this: a subclass may have another __iter__().


def is_in_order(sampler: Any, dataset: Any) -> bool:
    """Returns True when `sampler` gives each index of `dataset` once, the lowest first."""
    return type(sampler) is SequentialSampler and _is_as_long(sampler.data_source, dataset)


def is_any_order(sampler: Any, dataset: Any) -> bool:
    """Returns True when `sampler` gives each index of `dataset` once, in an order that depends on no generator of the
    caller's."""
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.generator is None
        and _is_as_long(sampler.data_source, dataset)
        and (sampler._num_samples is None or sampler._num_samples == len(dataset))
    )


def innermost(index_sampler: Any) -> Any:
    """Returns the sampler below torch's BatchSamplers, or `index_sampler` itself."""
    while type(index_sampler) is BatchSampler:
        index_sampler = index_sampler.sampler
    return index_sampler


def is_all_drawn(index_sampler: Any) -> bool:
    """Returns True when all that decides the order is drawn from global generators, or was told by set_epoch(): a pass
    leaves nothing for the next one."""
    sampler = innermost(index_sampler)
    if type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return sampler.generator is None
    return type(sampler) in (SequentialSampler, DistributedSampler)


def draw_as(index_sampler: Any) -> None:
    """Draws from torch's global generator what a loop over `index_sampler` draws there, as far as that is one of
    torch's."""
    sampler = innermost(index_sampler)
    if getattr(sampler, "generator", None) is not None:
        return
    # What makes a sampler fail is told by its planner, in the place of the batch.
    with contextlib.suppress(Exception):
        if type(sampler) is RandomSampler:
            # The seed of a generator of its own.
            torch.empty((), dtype=torch.int64).random_()
        elif type(sampler) is SubsetRandomSampler:
            torch.randperm(len(sampler.indices))
        elif type(sampler) is WeightedRandomSampler:
            torch.multinomial(sampler.weights, sampler.num_samples, sampler.replacement)


def _is_as_long(source: Any, dataset: Any) -> bool:
    if source is dataset:
        return True
    try:
        return len(source) == len(dataset)
    except Exception:
        # It need not have a length before it is iterated over.
        return False
