"""Iterable datasets: in one process, shared among workers, and what users do inside of them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.compatibility import material as m
from tests.compatibility.case import Loading, Raised, Separate, case, every_batch, loading


class Lines(IterableDataset[Any]):
    """Numbers, shared among the workers as the documentation of DataLoader shows."""

    def __init__(self, length: int = 20) -> None:
        self.length = length

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter(range(first, self.length, step))


class CountedLines(Lines):
    def __len__(self) -> int:
        return self.length


class Uneven(IterableDataset[int]):
    """The later worker has three times as much."""

    def __iter__(self) -> Any:
        info: Any = get_worker_info()
        return iter(range(100 * info.id, 100 * info.id + (17 if info.id else 5)))


class OneHasNothing(IterableDataset[int]):
    def __iter__(self) -> Any:
        info: Any = get_worker_info()
        return iter(range(7 * info.id))


class Unsteady(Lines):
    """Ends its first pass early, with an error."""

    def __iter__(self) -> Any:
        yield from range(5)
        raise ValueError("line 5 is broken")


class GoesOn(IterableDataset[int]):
    """Raises now and then, and goes on."""

    def __iter__(self) -> Any:
        self.at = -1
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= 20:
            raise StopIteration
        if self.at % 7 == 4:
            raise LookupError(f"no line {self.at}")
        return self.at


class NeverBegins(IterableDataset[int]):
    def __iter__(self) -> Any:
        raise RuntimeError("no such file")


class Between(IterableDataset[int]):
    """The range that worker_init_fn cuts it to, as the documentation of DataLoader shows."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Any:
        return iter(range(self.start, self.end))


def cut(worker: int) -> None:
    info: Any = get_worker_info()
    dataset = info.dataset
    share = -(-(dataset.end - dataset.start) // info.num_workers)
    dataset.start += worker * share
    dataset.end = min(dataset.start + share, dataset.end)


class Counted(IterableDataset[Any]):
    """Tells how often it was iterated over."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([self.passes] * 6)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return itertools.count()


class Told(IterableDataset[Any]):
    """What its worker is."""

    def __iter__(self) -> Any:
        for _ in range(6):
            info = get_worker_info()
            yield None if info is None else (info.id, info.num_workers, type(info.seed), type(info.dataset))


class Ragged(Lines):
    """Dicts with texts and tensors of any length."""

    def __iter__(self) -> Any:
        for index in super().__iter__():
            yield {"text": "a" * index, "ids": torch.arange(index), "label": index}


def padded(samples: list[Any]) -> dict[str, Any]:
    ids = torch.nn.utils.rnn.pad_sequence([sample["ids"] for sample in samples], batch_first=True, padding_value=-1)
    return {"texts": [sample["text"] for sample in samples], "ids": ids}


def doubled(number: int) -> int:
    return 2 * number


def told_worker(samples: list[Any]) -> Any:
    info: Any = get_worker_info()
    return info.id, samples


def refuses(worker: int) -> None:
    raise PermissionError("not in this worker")


def epochs(loader: Any) -> Separate:
    return Separate(each for _ in range(3) for each in every_batch(loader))


def kinds(loader: Any) -> Separate:
    """Of errors the types alone: what DataLoader's workers add to their texts, other cases tell."""
    return Separate(type(each.error) if isinstance(each, Raised) else each for each in every_batch(loader))


def kind_of_first(loader: Any) -> Any:
    try:
        return next(iter(loader))
    except Exception as error:
        return type(error)


@case("datasets", workers=0)
def an_iterable_dataset() -> Loading:
    return loading(Lines(), batch_size=3)


@case("datasets")
def an_iterable_dataset_that_workers_share() -> Loading:
    return loading(Lines(), batch_size=3)


@case("datasets")
def an_iterable_dataset_whose_workers_have_unequal_shares() -> Loading:
    return loading(Uneven(), batch_size=3, use=epochs)


@case("datasets")
def an_iterable_dataset_whose_workers_have_unequal_shares_and_drop_the_last() -> Loading:
    return loading(Uneven(), batch_size=3, drop_last=True)


@case("datasets")
def an_iterable_dataset_one_of_whose_workers_has_nothing() -> Loading:
    return loading(OneHasNothing(), batch_size=2, use=epochs)


@case("datasets")
def an_iterable_dataset_without_a_sample() -> Loading:
    return loading(Lines(0), batch_size=2, use=epochs)


@case("datasets", workers=0)
def an_iterable_dataset_with_a_length() -> Loading:
    return loading(CountedLines(), batch_size=3, drop_last=True)


@case("datasets", workers=0)
def an_iterable_dataset_without_batching() -> Loading:
    return loading(Lines(), batch_size=None)


@case("datasets")
def an_iterable_dataset_that_workers_share_without_batching() -> Loading:
    return loading(Uneven(), batch_size=None)


@case("datasets", workers=0)
def chain_dataset() -> Loading:
    return loading(ChainDataset([Lines(5), Lines(4)]), batch_size=3)


@case("datasets")
def chain_dataset_that_workers_share() -> Loading:
    return loading(ChainDataset([Lines(5), Lines(14)]), batch_size=3)


@case("datasets")
def a_data_pipe_that_is_sharded() -> Loading:
    return loading(IterableWrapper(range(20)).sharding_filter().map(doubled), batch_size=3, use=epochs)


@case("datasets")
def a_data_pipe_that_is_not_sharded() -> Loading:
    return loading(IterableWrapper(range(7)), batch_size=3)


@case("datasets")
def a_data_pipe_that_is_shuffled_before_it_is_sharded() -> Loading:
    pipe = IterableWrapper(range(20)).shuffle().sharding_filter()
    return loading(pipe, batch_size=3, use=lambda loader: sorted(int(x) for batch in loader for x in batch))


@case("datasets")
def an_iterable_dataset_of_dicts() -> Loading:
    return loading(Ragged(), batch_size=None)


@case("datasets")
def an_iterable_dataset_whose_collate_fn_pads() -> Loading:
    return loading(Ragged(), batch_size=3, collate_fn=padded)


@case("datasets", workers=0)
def an_iterable_dataset_that_remembers_without_workers() -> Loading:
    return loading(Counted(), batch_size=3, use=epochs)


@case("datasets")
def an_iterable_dataset_that_remembers() -> Loading:
    return loading(Counted(), batch_size=3, use=epochs)


@case("datasets")
def an_iterable_dataset_that_remembers_in_persistent_workers() -> Loading:
    return loading(Counted(), batch_size=3, use=epochs, persistent_workers=True)


@case("arguments")
def worker_init_fn_cuts_an_iterable_dataset() -> Loading:
    return loading(Between(3, 20), batch_size=3, worker_init_fn=cut, use=epochs)


@case("arguments", workers=0)
def get_worker_info_in_an_iterable_dataset_without_workers() -> Loading:
    return loading(Told(), batch_size=None)


@case("arguments")
def get_worker_info_in_an_iterable_dataset() -> Loading:
    return loading(Told(), batch_size=2, collate_fn=m.as_it_is)


@case("arguments")
def get_worker_info_in_the_collate_fn_of_an_iterable_dataset() -> Loading:
    return loading(Uneven(), batch_size=3, collate_fn=told_worker)


@case("errors", workers=0)
def an_iterable_dataset_that_raises() -> Loading:
    return loading(Unsteady(), batch_size=3)


@case("errors")
def an_iterable_dataset_that_raises_in_workers() -> Loading:
    return loading(Unsteady(), batch_size=2, use=kinds)


@case("errors")
def an_iterable_dataset_that_raises_and_goes_on() -> Loading:
    return loading(GoesOn(), batch_size=3, use=kinds)


@case("errors")
def an_iterable_dataset_that_never_begins() -> Loading:
    return loading(NeverBegins(), batch_size=3, use=kind_of_first)


@case("errors")
def worker_init_fn_that_raises_with_an_iterable_dataset() -> Loading:
    return loading(Lines(), batch_size=3, worker_init_fn=refuses, use=kind_of_first)


@case("iteration")
def a_break_in_an_endless_dataset() -> Loading:
    return loading(Endless(), batch_size=3, use=lambda loader: [list(itertools.islice(loader, 5)) for _ in range(3)])


@case("iteration")
def zip_of_an_iterable_dataset_with_itself() -> Loading:
    return loading(Uneven(), batch_size=3, use=lambda loader: list(zip(loader, loader)))


@case("iteration")
def nested_loops_over_an_iterable_dataset() -> Loading:
    return loading(Lines(8), batch_size=2, use=lambda loader: [(one, two) for one in loader for two in loader])


@case("iteration")
def the_length_of_an_iterable_dataset_without_one() -> Loading:
    return loading(Lines(), use=len)


@case("iteration")
def the_length_of_an_iterable_dataset() -> Loading:
    return loading(CountedLines(), batch_size=3, use=lambda loader: (len(loader), every_batch(loader)))
