"""Warnings: what is warned of in the trainer, and what is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import SequentialSampler

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading

MANY = "the daemon bounds its workers, whatever number is asked for, so that there are none too many to warn of"
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


@case("warnings", workers=0, reason=MANY, difference=": '1 items' and '0 items'")
def more_workers_than_processors() -> Loading:
    return told(id, batch_size=4, num_workers=1000)
