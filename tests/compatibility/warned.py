"""Warnings: what is warned of in the trainer, and what is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset, SequentialSampler

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading

NO_ACCELERATOR = not torch.accelerator.is_available()


def told(through: Callable[[Any], Any] = list, **arguments: Any) -> Loading:
    """What making a loader with these arguments and iterating over it warns of."""

    def use(loader: Any) -> Any:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            through(type(loader)(m.Made(int), **arguments))
        # Of forks in a process with threads Python warns, not the loader.
        return [(each.category, str(each.message)) for each in found if each.category is not DeprecationWarning]

    return loading(m.Made(int), use=use)


class MoreThanItsLength(IterableDataset[int]):
    """Does not share its numbers among the workers."""

    def __iter__(self) -> Any:
        return iter(range(5))

    def __len__(self) -> int:
        return 4

    def __repr__(self) -> str:
        return "MoreThanItsLength()"


def told_of_lengths(through: Callable[[Any], Any], **arguments: Any) -> Loading:
    """What iterating over a loader of MoreThanItsLength warns of, with the batches that it gives."""

    def use(loader: Any) -> Any:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            batches = through(loader)
        return batches, [(each.category, str(each.message)) for each in found if each.category is UserWarning]

    return loading(MoreThanItsLength(), use=use, **arguments)


@case("warnings", workers=0)
def nothing_is_warned_of() -> Loading:
    return told(batch_size=4, shuffle=True)


@case("warnings", workers=0)
def nothing_is_warned_of_with_workers() -> Loading:
    return told(batch_size=4, num_workers=1, persistent_workers=True, prefetch_factor=1, timeout=50)


@case("warnings", workers=0)
def nothing_is_warned_of_when_an_epoch_is_broken_off() -> Loading:
    return told(lambda loader: next(iter(loader)), batch_size=4, sampler=SequentialSampler(range(10)))


@case("warnings", workers=0)
def pin_memory_where_there_is_no_accelerator() -> Loading:
    return told(batch_size=4, pin_memory=NO_ACCELERATOR)


@case("warnings", workers=0)
def pin_memory_where_there_is_no_accelerator_for_two_epochs() -> Loading:
    return told(lambda loader: [list(loader), list(loader)], batch_size=4, pin_memory=NO_ACCELERATOR)


@case("warnings", workers=0)
def pin_memory_device_without_pin_memory() -> Loading:
    return told(batch_size=4, pin_memory_device="cuda:0")


@case("warnings", workers=0)
def pin_memory_device_with_pin_memory() -> Loading:
    return told(batch_size=4, pin_memory=NO_ACCELERATOR, pin_memory_device="cuda:0")


@case("warnings", workers=0)
def more_workers_than_processors() -> Loading:
    return told(id, batch_size=4, num_workers=1000)


@case("warnings", workers=0)
def more_batches_than_the_length_that_was_told() -> Loading:
    return told_of_lengths(lambda loader: (len(loader), list(loader)))


@case("warnings", workers=2)
def more_batches_of_workers_than_the_length_that_was_told() -> Loading:
    return told_of_lengths(lambda loader: (len(loader), list(loader)))


@case("warnings", workers=2)
def more_batches_than_a_length_that_was_not_asked_for() -> Loading:
    return told_of_lengths(list)


@case("warnings", workers=2)
def more_batches_than_a_length_that_was_asked_for_meanwhile() -> Loading:
    return told_of_lengths(lambda loader: [[(len(loader), batch) for batch in loader] for _ in range(2)])


@case("warnings", workers=2)
def more_batches_than_the_length_in_batches_and_fewer_than_in_samples() -> Loading:
    return told_of_lengths(lambda loader: (len(loader), list(loader)), batch_size=3)
