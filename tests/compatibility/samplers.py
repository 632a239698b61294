"""Samplers and batch samplers of every kind: what they may yield, and how often they are asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from tests.compatibility import material as m
from tests.compatibility.case import Loading, Separate, case, every_batch, loading
from tests.compatibility.orders import Remembering, sampled, seeded, several_epochs

ASKED_TWICE = (
    "with workers DataLoader calls iter() of a batch_sampler twice for its first epoch; ours once, as without them"
)

TWENTY: Any = range(20)


class TellsKeys(m.Made):
    """What kind of key each sample was asked for by."""

    def __getitem__(self, key: Any) -> Any:
        return type(key).__name__, int(key)


class Buckets(Sampler[list[int]]):
    """Batches of samples of similar length, in another order in each epoch."""

    def __init__(self, lengths: list[int], size: int) -> None:
        self.lengths, self.size, self.epoch = lengths, size, 0

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.size)

    def __iter__(self) -> Any:
        self.epoch += 1
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        buckets = [order[place : place + self.size] for place in range(0, len(order), self.size)]
        generator = torch.Generator().manual_seed(self.epoch)
        for place in torch.randperm(len(buckets), generator=generator).tolist():
            yield buckets[place]


class Turning(Sampler[list[int]]):
    """Begins one later in each epoch; makes all batches when iter() is called."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter([[self.epoch + place, self.epoch + place + 1] for place in range(0, 8, 2)])


class Lengthless(Sampler[list[int]]):
    def __iter__(self) -> Any:
        return iter([[1, 2], [3]])


class Breaking(Sampler[list[int]]):
    """Raises after its first batch."""

    def __iter__(self) -> Any:
        yield [1, 2]
        raise LookupError("no more batches")


class Repeated(Sampler[int]):
    """Each sample of another sampler twice, as repeated augmentation does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 2 * len(self.inner)

    def __iter__(self) -> Any:
        return (key for key in self.inner for _ in range(2))


def batched(batches: Any, **arguments: Any) -> Loading:
    return loading(m.Made(int, 20), batch_sampler=batches, **arguments)


# --- samplers ---


@case("arguments", workers=0)
def sampler_distributed_that_drops() -> Loading:
    return sampled(DistributedSampler(TWENTY, num_replicas=3, rank=2, seed=5, drop_last=True))


@case("arguments", workers=0)
def sampler_distributed_without_shuffle() -> Loading:
    return sampled(DistributedSampler(TWENTY, num_replicas=3, rank=2, shuffle=False))


@case("arguments", workers=0)
def sampler_distributed_of_more_ranks_than_samples() -> Loading:
    few: Any = range(2)
    return loading(m.Made(int, 2), batch_size=1, sampler=DistributedSampler(few, num_replicas=5, rank=4))


@case("arguments", workers=0)
def sampler_distributed_and_drop_last() -> Loading:
    return sampled(DistributedSampler(TWENTY, num_replicas=3, rank=2, shuffle=False), drop_last=True)


@case("arguments", workers=0)
def sampler_random_of_more_than_there_are() -> Loading:
    return sampled(RandomSampler(TWENTY, num_samples=45, generator=seeded()))


@case("arguments", workers=0)
def sampler_random_of_fewer_than_there_are() -> Loading:
    return sampled(RandomSampler(TWENTY, num_samples=7, generator=seeded()), use=several_epochs)


FIVE: Any = range(5)


def in_order(loader: Any) -> Any:
    """What one epoch has, whatever its order."""
    return sorted(int(each) for batch in loader for each in batch)


@case("arguments", workers=0)
def sampler_sequential_over_fewer_than_there_are() -> Loading:
    return sampled(SequentialSampler(FIVE), use=several_epochs)


@case("arguments", workers=0)
def sampler_sequential_over_a_list_that_grows() -> Loading:
    source = list(range(20))

    def use(loader: Any) -> Separate:
        found = every_batch(loader)
        del source[7:]
        return Separate(found + every_batch(loader))

    return sampled(SequentialSampler(source), use=use)  # type: ignore[arg-type]


@case("arguments", workers=0)
def sampler_random_over_fewer_than_there_are() -> Loading:
    return loading(list(range(20)), batch_size=3, sampler=RandomSampler(FIVE), use=in_order)


@case("arguments", workers=0)
def sampler_random_over_fewer_several_times() -> Loading:
    return loading(list(range(20)), batch_size=3, sampler=RandomSampler(FIVE, num_samples=20), use=in_order)


@case("arguments", workers=0)
def sampler_sequential_over_more_than_there_are() -> Loading:
    more: Any = range(23)
    return loading(list(range(20)), batch_size=3, sampler=SequentialSampler(more))


@case("arguments", workers=0)
def batch_sampler_of_a_sequential_one_over_fewer() -> Loading:
    return batched(BatchSampler(SequentialSampler(FIVE), 2, False), use=several_epochs)


@case("arguments", workers=0)
def sampler_weighted_without_replacement() -> Loading:
    return sampled(WeightedRandomSampler([0.1, 0.9] * 10, 12, replacement=False, generator=seeded()))


@case("arguments", workers=0)
def sampler_around_a_sampler() -> Loading:
    return sampled(Repeated(RandomSampler(TWENTY, generator=seeded())), use=several_epochs)


@case("arguments", workers=0)
def sampler_that_is_a_tensor() -> Loading:
    return loading(TellsKeys(int, 20), sampler=torch.tensor([3, 1, 4, 1, 5]), batch_size=2)


@case("arguments", workers=0)
def sampler_that_is_an_array() -> Loading:
    return loading(TellsKeys(int, 20), sampler=np.array([3, 1, 4, 1, 5]), batch_size=2)


@case("arguments", workers=0)
def sampler_that_is_empty() -> Loading:
    return sampled([])


@case("arguments", workers=0)
def sampler_that_is_a_dict() -> Loading:
    return loading({"a": 1, "b": 2, "c": 3}, sampler={"c": None, "a": None}, batch_size=2)


# --- batch samplers ---


@case("arguments", workers=0)
def batch_sampler_of_buckets() -> Loading:
    return batched(Buckets([place * 7 % 20 for place in range(20)], 3), use=several_epochs)


@case("arguments", workers=0)
def batch_sampler_of_unequal_batches() -> Loading:
    return batched([[1], [2, 3, 4, 5], [6, 7]], use=several_epochs)


@case("arguments", workers=0)
def batch_sampler_with_an_empty_batch() -> Loading:
    return batched([[1], [], [6, 7]])


@case("arguments", workers=0)
def batch_sampler_of_tuples() -> Loading:
    return batched([(1, 2), (3, 4)])


@case("arguments", workers=0)
def batch_sampler_that_is_an_array() -> Loading:
    return loading(TellsKeys(int, 20), batch_sampler=np.arange(20).reshape(4, 5))


@case("arguments", workers=0)
def batch_sampler_that_is_a_tensor() -> Loading:
    return loading(TellsKeys(int, 20), batch_sampler=torch.arange(20).reshape(4, 5))


@case("arguments", workers=0)
def batch_sampler_of_a_random_sampler() -> Loading:
    return batched(BatchSampler(RandomSampler(TWENTY, generator=seeded()), 6, False), use=several_epochs)


@case("arguments")
def batch_sampler_with_workers() -> Loading:
    return batched(Buckets([place * 7 % 20 for place in range(20)], 3))


@case("arguments")
def sampler_that_counts_when_it_is_asked() -> Loading:
    return loading(m.Made(int, 20), sampler=Remembering(), batch_size=5)


@case("arguments", reason=ASKED_TWICE, difference=r"\[\d\]\.bytes: .*")
def batch_sampler_that_counts_when_it_is_asked() -> Loading:
    return batched(Turning())


@case("datasets", workers=0)
def batches_of_indices_without_batching() -> Loading:
    rows = torch.arange(40).reshape(20, 2)
    return loading(rows, sampler=BatchSampler(SequentialSampler(TWENTY), 3, False), batch_size=None)


# --- what is drawn beside the loop ---


def drawn_after(loader: Any) -> Any:
    """What the script itself draws while it iterates, and afterwards."""
    torch.manual_seed(7)
    drawn = [float(torch.rand(())) for _ in loader]
    return [*drawn, float(torch.rand(()))]


@case("iteration")
def draws_beside_a_shuffle() -> Loading:
    return loading(m.Made(int, 20), batch_size=3, shuffle=True, use=drawn_after)


@case("iteration")
def draws_beside_a_batch_sampler_of_a_random_sampler() -> Loading:
    return batched(BatchSampler(RandomSampler(TWENTY), 3, False), use=drawn_after)


@case("iteration")
def draws_beside_a_random_sampler_without_batching() -> Loading:
    return loading(m.Made(int, 20), batch_size=None, sampler=RandomSampler(TWENTY), use=drawn_after)


@case("iteration")
def draws_beside_a_random_sampler_over_fewer() -> Loading:
    return sampled(RandomSampler(FIVE), use=drawn_after)


@case("iteration")
def draws_beside_a_sampler_of_a_subset() -> Loading:
    return sampled(SubsetRandomSampler(range(7)), use=drawn_after)


@case("iteration")
def draws_beside_a_weighted_sampler() -> Loading:
    return sampled(WeightedRandomSampler([0.1, 0.9] * 10, 12), use=drawn_after)


@case("iteration")
def draws_beside_a_batch_sampler_with_a_generator() -> Loading:
    return batched(BatchSampler(RandomSampler(TWENTY, generator=seeded()), 3, False), use=drawn_after)


@case("iteration")
def breaking_off_a_batch_sampler_with_a_generator() -> Loading:
    """Workers of DataLoader's have run the sampler to its end by then."""

    def use(loader: Any) -> Separate:
        found = Separate()
        for _ in range(2):
            iterator = iter(loader)
            found += [next(iterator) for _ in range(4)]
            del iterator
        return found

    return batched(BatchSampler(RandomSampler(TWENTY, generator=seeded()), 3, False), use=use)


# --- keys ---


@case("datasets", workers=0)
def negative_keys() -> Loading:
    return loading(list(range(20)), sampler=[-1, -20, 3], batch_size=2)


@case("datasets", workers=0)
def keys_that_are_slices() -> Loading:
    return loading(torch.arange(20), sampler=[slice(0, 4), slice(3, 12, 3)], batch_size=None)


@case("errors", workers=0)
def a_key_of_another_type() -> Loading:
    return loading(list(range(20)), sampler=[1, "a", 3], batch_size=1)


@case("errors", workers=0)
def a_batch_sampler_that_raises() -> Loading:
    return batched(Breaking())


@case("errors", workers=0)
def the_length_of_a_batch_sampler_without_one() -> Loading:
    return batched(Lengthless(), use=lambda loader: (list(loader), len(loader)))


# --- lengths ---


@case("iteration", workers=0)
def lengths_of_everything() -> Loading:
    def use(loader: Any) -> Any:
        return [len(each) for each in (loader, loader.sampler, loader.batch_sampler, loader.dataset, iter(loader))]

    return loading(m.Made(int, 20), batch_size=3, drop_last=True, use=use)


@case("iteration", workers=0)
def length_with_a_batch_sampler() -> Loading:
    return batched([[1, 2], [3]], use=len)


@case("iteration", workers=0)
def length_of_a_sampler_with_replacement() -> Loading:
    return sampled(RandomSampler(TWENTY, replacement=True, num_samples=90), use=len)


@case("iteration", workers=0)
def length_of_a_distributed_sampler() -> Loading:
    return sampled(DistributedSampler(TWENTY, num_replicas=3, rank=1), use=len)
