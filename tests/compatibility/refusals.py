"""Arguments of the wrong type, or that exclude each other: refused with the same words, at the same time."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from tests.compatibility import material as m
from tests.compatibility.arguments import Counting, refused, ten
from tests.compatibility.case import Loading, Raised, case, loading


def first_error(loader: Any) -> Any:
    """Where a loader raises that was made: at iter() or at the first next()."""
    try:
        return next(iter(loader))
    except Exception as error:
        return Raised(error)


@case("arguments", workers=0)
def timeout_of_another_type() -> Loading:
    return refused(timeout="long")


@case("arguments", workers=0)
def num_workers_of_another_type() -> Loading:
    return refused(num_workers="two")


@case("arguments", workers=0)
def negative_batch_size() -> Loading:
    return refused(batch_size=-3)


@case("arguments", workers=0)
def batch_size_that_is_a_bool() -> Loading:
    return refused(batch_size=True)


@case("arguments", workers=0)
def batch_sampler_and_sampler() -> Loading:
    return refused(batch_sampler=[[1, 2]], sampler=[1])


@case("arguments", workers=0)
def batch_sampler_and_drop_last() -> Loading:
    return refused(batch_sampler=[[1, 2]], drop_last=True)


@case("arguments", workers=0)
def batch_sampler_without_batching() -> Loading:
    return refused(batch_sampler=BatchSampler(SequentialSampler(range(10)), 2, False), batch_size=None)


@case("arguments", workers=0)
def shuffle_of_nothing() -> Loading:
    return loading(m.Made(int, 0), batch_size=2, shuffle=True)


@case("arguments", workers=0)
def shuffle_without_batching() -> Loading:
    return ten(batch_size=None, shuffle=True, use=lambda loader: sorted(float(sample.sum()) for sample in loader))


@case("arguments", workers=0)
def shuffle_false_of_an_iterable_dataset() -> Loading:
    return loading(Counting(), batch_size=3, shuffle=False)


@case("arguments", workers=0)
def drop_last_of_an_iterable_dataset() -> Loading:
    return loading(Counting(), batch_size=3, drop_last=True)


@case("arguments", workers=0)
def collate_fn_that_cannot_be_called() -> Loading:
    return ten(batch_size=4, collate_fn=5)


@case("arguments", workers=0)
def collate_fn_that_takes_other_arguments() -> Loading:
    return ten(batch_size=4, collate_fn=lambda first, second: first)


@case("arguments", workers=0)
def generator_of_another_type() -> Loading:
    return ten(batch_size=4, shuffle=True, generator=5, use=first_error)


@case("arguments", workers=0)
def positional_arguments() -> Loading:
    def use(loader: Any) -> Any:
        return list(type(loader)(m.Made(int, 20), 4, False, None, None, 0, m.as_it_is, False, True))

    return ten(use=use)


@case("arguments", workers=0)
def more_positional_arguments_than_there_are() -> Loading:
    def use(loader: Any) -> Any:
        try:
            type(loader)(m.Made(int), 4, False, None, None, 0, None, False, False, 0, None, None, None, 2)
        except TypeError as error:
            return str(error).partition("takes from")[2]

    return ten(use=use)


@case("arguments", workers=0)
def a_subscripted_class() -> Loading:
    return ten(use=lambda loader: list(type(loader)[torch.Tensor](m.Made(int), batch_size=4)))
