"""Samplers and batch samplers of every kind: what they may yield, and how often they are asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading
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
