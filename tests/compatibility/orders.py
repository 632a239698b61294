"""Orders that are not the loader's own: samplers, batch samplers, generators."""

from __future__ import annotations

from typing import Any

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
from tests.compatibility.case import Loading, Raised, Separate, case, every_batch, loading


class Broken(Sampler[int]):
    def __iter__(self) -> Any:
        yield from range(5)
        raise LookupError("no more keys")


class Remembering(Sampler[int]):
    """Another order in each pass, by what it keeps itself."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([(index * (2 * self.passes + 1)) % 20 for index in range(20)])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def sampled(sampler: Any, **arguments: Any) -> Loading:
    return loading(m.Made(int, 20), sampler=sampler, **({"batch_size": 3} | arguments))


@case("arguments", workers=0)
def shuffle_with_a_generator() -> Loading:
    return loading(m.Made(int, 20), batch_size=3, shuffle=True, generator=seeded())


@case("arguments", workers=0)
def a_generator_without_shuffle() -> Loading:
    return loading(m.Made(int, 20), batch_size=3, generator=seeded())


@case("arguments", workers=0)
def sampler_that_is_a_list() -> Loading:
    return sampled([3, 1, 4, 1, 5, 9, 2, 6])


@case("arguments", workers=0)
def sampler_that_is_a_range() -> Loading:
    return sampled(range(19, 0, -2))


@case("arguments", workers=0)
def sampler_sequential() -> Loading:
    return sampled(SequentialSampler(range(20)))


@case("arguments", workers=0)
def sampler_random_with_a_generator() -> Loading:
    return sampled(RandomSampler(range(20), generator=seeded()))


@case("arguments", workers=0)
def sampler_random_with_replacement() -> Loading:
    return sampled(RandomSampler(range(20), replacement=True, num_samples=12, generator=seeded()))


@case("arguments", workers=0)
def sampler_weighted() -> Loading:
    return sampled(WeightedRandomSampler([0.1, 0.9] * 10, 12, generator=seeded()))


@case("arguments", workers=0)
def sampler_of_a_subset() -> Loading:
    return sampled(SubsetRandomSampler(range(0, 20, 3), generator=seeded()))


@case("arguments", workers=0)
def sampler_distributed() -> Loading:
    return sampled(DistributedSampler(range(20), num_replicas=3, rank=1, seed=5))  # type: ignore[arg-type]


@case("arguments", workers=0)
def sampler_without_batching() -> Loading:
    return sampled([3, 1, 4], batch_size=None)


@case("arguments", workers=0)
def batch_sampler_of_torch() -> Loading:
    return loading(m.Made(int, 20), batch_sampler=BatchSampler(range(19, -1, -1), 3, True))


@case("arguments", workers=0)
def batch_sampler_that_is_a_list() -> Loading:
    return loading(m.Made(int, 20), batch_sampler=[[1, 2], [3], [4, 5, 6]])


@case("datasets", workers=0)
def keys_that_are_strings() -> Loading:
    return loading({"a": 1, "b": 2, "c": 3}, sampler=["c", "a", "b"], batch_size=2)


@case("datasets", workers=0)
def keys_that_are_tuples() -> Loading:
    return loading({(0, "a"): 1, (1, "b"): 2}, sampler=[(1, "b"), (0, "a")], batch_size=2)


@case("datasets", workers=0)
def keys_that_are_lists_of_indices() -> Loading:
    return loading(torch.arange(20), sampler=[[1, 2], [3, 4]], batch_size=None)


@case("errors", workers=0)
def a_sampler_that_raises() -> Loading:
    return sampled(Broken())


@case("arguments", workers=0)
def sampler_that_is_a_generator() -> Loading:
    return sampled(index for index in range(5))


def several_epochs(loader: Any) -> Separate:
    """With what the user's code may look at in between."""
    found = Separate()
    for _ in range(3):
        found += every_batch(loader)
        found.append(states(loader))
    return found


def states(loader: Any) -> Any:
    """Of the generators that the loader was given."""
    inner = getattr(loader.batch_sampler, "sampler", loader.sampler)
    generators = [loader.generator, getattr(inner, "generator", None)]
    return [each.get_state().tolist() for each in generators if each is not None]


@case("iteration", workers=0)
def shuffle_with_a_generator_for_several_epochs() -> Loading:
    return loading(m.Made(int, 20), batch_size=3, shuffle=True, generator=seeded(), use=several_epochs)


@case("iteration")
def shuffle_with_a_generator_and_workers_for_several_epochs() -> Loading:
    return loading(m.Made(int, 20), batch_size=3, shuffle=True, generator=seeded(), use=several_epochs)


@case("iteration")
def shuffle_with_a_generator_and_persistent_workers_for_several_epochs() -> Loading:
    own = {"generator": seeded(), "persistent_workers": True}
    return loading(m.Made(int, 20), batch_size=3, shuffle=True, use=several_epochs, **own)


@case("iteration")
def a_generator_without_shuffle_and_persistent_workers_for_several_epochs() -> Loading:
    own = {"generator": seeded(), "persistent_workers": True}
    return loading(m.Made(int, 20), batch_size=3, use=several_epochs, **own)


@case("iteration")
def replacement_and_persistent_workers_for_several_epochs() -> Loading:
    sampler = RandomSampler(range(20), replacement=True, num_samples=90, generator=seeded())
    return sampled(sampler, generator=seeded(), persistent_workers=True, use=several_epochs)


@case("iteration")
def a_generator_that_is_seeded_between_epochs_of_persistent_workers() -> Loading:
    def use(loader: Any) -> Separate:
        found = Separate()
        for seed in (1, 2, 2):
            loader.generator.manual_seed(seed)
            found += every_batch(loader)
            found.append(states(loader))
        return found

    own = {"generator": seeded(), "persistent_workers": True}
    return loading(m.Made(int, 20), batch_size=3, shuffle=True, use=use, **own)


@case("iteration", workers=0)
def replacement_for_several_epochs() -> Loading:
    sampler = RandomSampler(range(20), replacement=True, num_samples=90, generator=seeded())
    return sampled(sampler, generator=seeded(), use=several_epochs)


@case("iteration", workers=0)
def weighted_for_several_epochs() -> Loading:
    return sampled(WeightedRandomSampler([0.1, 0.9] * 10, 12, generator=seeded()), use=several_epochs)


@case("iteration", workers=0)
def a_sampler_that_remembers_its_passes() -> Loading:
    return sampled(Remembering(), use=several_epochs)


@case("iteration", workers=0)
def a_generator_that_is_seeded_between_epochs() -> Loading:
    def use(loader: Any) -> Separate:
        found = Separate()
        for seed in (1, 2, 2):
            loader.generator.manual_seed(seed)
            found += every_batch(loader)
        return found

    return loading(m.Made(int, 20), batch_size=3, shuffle=True, generator=seeded(), use=use)


@case("iteration", workers=0)
def set_epoch_of_a_sampler() -> Loading:
    def use(loader: Any) -> Separate:
        found = Separate()
        for epoch in (0, 1, 5, 5):
            loader.sampler.set_epoch(epoch)
            found += every_batch(loader)
        return found

    return sampled(DistributedSampler(range(20), num_replicas=3, rank=1, seed=5), use=use)  # type: ignore[arg-type]


@case("iteration", workers=0)
def a_sampler_that_is_changed_between_epochs() -> Loading:
    def use(loader: Any) -> Separate:
        found = every_batch(loader)
        loader.sampler.append(7)
        return Separate(found + every_batch(loader))

    return sampled([3, 1, 4], use=use)


@case("iteration", workers=0)
def breaking_off_with_a_generator() -> Loading:
    def use(loader: Any) -> Separate:
        found = Separate()
        for _ in range(3):
            found.append(next(iter(loader)))
            found.append(states(loader))
        return Separate(found + every_batch(loader))

    return loading(m.Made(int, 20), batch_size=3, shuffle=True, generator=seeded(), use=use)


@case("iteration", workers=0)
def the_length_of_a_sampler() -> Loading:
    return sampled([3, 1, 4, 1], batch_size=3, use=len)


@case("errors", workers=0)
def the_length_of_a_sampler_without_one() -> Loading:
    return sampled(Broken(), use=_length)


def _length(loader: Any) -> Any:
    try:
        return len(loader)
    except TypeError as error:
        return Raised(error)


@case("errors", workers=0)
def a_key_that_the_dataset_does_not_have() -> Loading:
    return sampled([1, 2, 30], batch_size=1)
