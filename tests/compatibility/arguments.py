"""Arguments: accepted with the same effect, refused with the same error, kept under the same names."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import collate_str_fn, default_collate_fn_map

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading

IN_THE_PROCESS = "workers are forked when the loader is made: what is changed afterwards in a library they do not see"

ATTRIBUTES = ("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "prefetch_factor")
ATTRIBUTES += ("persistent_workers", "pin_memory_device", "in_order", "collate_fn", "worker_init_fn", "generator")


class Counting(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


class Asking(m.Made):
    """Changed by worker_init_fn through get_worker_info, as the documentation of DataLoader shows."""

    def __getitem__(self, index: int) -> Any:
        return index + self.offset


def init_by_dataset(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.offset = 100


def init_by_global(worker: int) -> None:
    m.Bag.opened = worker >= 0  # type: ignore[attr-defined]


def ten(**arguments: Any) -> Loading:
    return loading(m.Made(m.tensor), **arguments)


def refused(**arguments: Any) -> Loading:
    """The constructor raises."""
    return loading(m.Made(int), **arguments)


# --- accepted ---


@case("arguments")
def nothing_but_a_dataset() -> Loading:
    return ten()


@case("arguments")
def batch_size() -> Loading:
    return ten(batch_size=4)


@case("arguments")
def drop_last() -> Loading:
    return ten(batch_size=4, drop_last=True)


@case("arguments", workers=0)
def drop_last_of_less_than_a_batch() -> Loading:
    return ten(batch_size=11, drop_last=True)


@case("arguments", workers=0)
def batch_size_none() -> Loading:
    return ten(batch_size=None)


@case("arguments", workers=0)
def shuffle_false() -> Loading:
    return ten(batch_size=4, shuffle=False)


@case("arguments", workers=0)
def shuffle_gives_each_sample_once() -> Loading:
    return loading(m.Made(int, 50), batch_size=8, shuffle=True, use=_sorted_twice)


@case("arguments", workers=0)
def shuffle_changes_the_order() -> Loading:
    return loading(m.Made(int, 500), batch_size=500, shuffle=True, use=_is_in_order)


@case("arguments", workers=0)
def one_worker() -> Loading:
    return ten(batch_size=4, num_workers=1)


@case("arguments")
def prefetch_factor_and_persistent_workers() -> Loading:
    return ten(batch_size=4, prefetch_factor=3, persistent_workers=True, use=_two_epochs)


@case("arguments")
def multiprocessing_context() -> Loading:
    return ten(batch_size=4, multiprocessing_context="fork")


@case("arguments")
def timeout() -> Loading:
    return ten(batch_size=4, timeout=50)


@case("arguments")
def pin_memory_without_an_accelerator() -> Loading:
    return ten(batch_size=4, pin_memory=not torch.accelerator.is_available())


@case("arguments")
def in_order() -> Loading:
    return ten(batch_size=4, in_order=True)


@case("arguments", workers=0)
def collate_fn_default_collate() -> Loading:
    return ten(batch_size=4, collate_fn=default_collate)


@case("arguments", workers=0)
def collate_fn_that_is_an_object() -> Loading:
    return ten(batch_size=4, collate_fn=_Collating(3))


@case("arguments", workers=0)
def collate_fn_that_is_a_bound_method() -> Loading:
    return ten(batch_size=4, collate_fn=_Collating(3).collate)


@case("arguments", workers=0)
def collate_fn_with_torch_functions() -> Loading:
    return ten(batch_size=4, collate_fn=torch.stack)


@case("arguments")
def worker_init_fn_changes_its_dataset() -> Loading:
    return loading(Asking(int), batch_size=4, worker_init_fn=init_by_dataset)


@case("arguments")
def worker_init_fn_changes_a_module() -> Loading:
    return loading(m.Made(_opened), batch_size=4, worker_init_fn=init_by_global)


@case("arguments")
def get_worker_info_in_a_sample() -> Loading:
    return loading(m.Made(_info), batch_size=4, collate_fn=m.as_it_is)


@case("arguments")
def torch_in_workers_has_one_thread() -> Loading:
    return loading(m.Made(lambda index: torch.get_num_threads()), batch_size=4)


@case("arguments")
def gradients_are_recorded_in_samples() -> Loading:
    return loading(m.Made(lambda index: torch.is_grad_enabled()), batch_size=4)


@case("arguments", reason=IN_THE_PROCESS, difference=r"\[\d\]\.(dtype: torch\.float64 and torch\.float32|bytes: .*)")
def a_default_dtype_that_was_set() -> Loading:
    return loading(m.Made(int), batch_size=4, collate_fn=_floats, use=_with_float64)


@case("arguments")
def default_collate_that_was_extended() -> Loading:
    default_collate_fn_map[m.Bag] = _collate_bags
    return loading(m.Made(lambda index: (m.Bag(index=index), index)), batch_size=4, use=_and_no_longer)


@case("arguments", workers=0)
def default_collate_that_was_changed() -> Loading:
    default_collate_fn_map[str] = _collate_texts
    return loading(m.Made(lambda index: {"text": f"s{index}"}), batch_size=4, use=_and_no_longer)


# --- kept ---


@case("arguments", workers=0)
def attributes_of_a_loader() -> Loading:
    return ten(batch_size=4, drop_last=True, collate_fn=m.as_it_is, use=_attributes)


@case("arguments")
def attributes_of_a_loader_with_workers() -> Loading:
    return ten(batch_size=None, timeout=50, persistent_workers=True, worker_init_fn=init_by_global, use=_attributes)


@case("arguments", workers=0)
def samplers_of_a_loader() -> Loading:
    return ten(batch_size=4, drop_last=True, use=_samplers)


@case("arguments", workers=0)
def attributes_that_must_not_be_set() -> Loading:
    return ten(batch_size=4, use=_set_batch_size)


@case("arguments", workers=0)
def an_attribute_of_the_user_s_own() -> Loading:
    return ten(batch_size=4, use=_own_attribute)


# --- refused ---


@case("arguments", workers=0)
def batch_size_zero() -> Loading:
    return refused(batch_size=0)


@case("arguments", workers=0)
def batch_size_of_another_type() -> Loading:
    return refused(batch_size=2.5)


@case("arguments", workers=0)
def batch_size_of_numpy() -> Loading:
    return refused(batch_size=np.int64(4))


@case("arguments", workers=0)
def drop_last_without_batch_size() -> Loading:
    return refused(batch_size=None, drop_last=True)


@case("arguments", workers=0)
def negative_num_workers() -> Loading:
    return refused(num_workers=-1)


@case("arguments", workers=0)
def negative_timeout() -> Loading:
    return refused(timeout=-1)


@case("arguments", workers=0)
def prefetch_factor_without_workers() -> Loading:
    return refused(prefetch_factor=2)


@case("arguments")
def negative_prefetch_factor() -> Loading:
    return refused(prefetch_factor=-2)


@case("arguments", workers=0)
def persistent_workers_without_workers() -> Loading:
    return refused(persistent_workers=True)


@case("arguments", workers=0)
def multiprocessing_context_without_workers() -> Loading:
    return refused(multiprocessing_context="fork")


@case("arguments")
def an_unknown_multiprocessing_context() -> Loading:
    return refused(multiprocessing_context="teleport")


@case("arguments", workers=0)
def sampler_and_shuffle() -> Loading:
    return refused(sampler=range(10), shuffle=True)


@case("arguments", workers=0)
def batch_sampler_and_batch_size() -> Loading:
    return refused(batch_sampler=[[1, 2]], batch_size=2)


@case("arguments", workers=0)
def batch_sampler_and_shuffle() -> Loading:
    return refused(batch_sampler=[[1, 2]], shuffle=True)


@case("arguments", workers=0)
def shuffle_of_an_iterable_dataset() -> Loading:
    return loading(Counting(), shuffle=True)


@case("arguments", workers=0)
def sampler_of_an_iterable_dataset() -> Loading:
    return loading(Counting(), sampler=range(10))


@case("arguments", workers=0)
def batch_sampler_of_an_iterable_dataset() -> Loading:
    return loading(Counting(), batch_sampler=[[1, 2]])


@case("arguments", workers=0)
def an_unknown_argument() -> Loading:
    def use(loader: Any) -> Any:
        try:
            type(loader)(m.Made(int), colour="red")
        except TypeError as error:
            return str(error).replace(type(loader).__name__, "DataLoader")

    return loading(m.Made(int), use=use)


class _Collating:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, samples: Any) -> Any:
        return [sample * self.factor for sample in samples]

    def collate(self, samples: Any) -> Any:
        return {"x": self(samples)}


def _floats(samples: Any) -> torch.Tensor:
    return torch.tensor([sample / 2 for sample in samples])


def _opened(index: int) -> bool:
    return bool(m.Bag.opened)  # type: ignore[attr-defined]


def _info(index: int) -> Any:
    info: Any = get_worker_info()
    return info.num_workers, info.id < 2, type(info.seed), type(info.dataset), len(info.dataset)


def _sorted_twice(loader: Any) -> Any:
    return [sorted(index for batch in loader for index in batch.tolist()) for _ in range(2)]


def _is_in_order(loader: Any) -> Any:
    first, second = (batch.tolist() for _ in range(2) for batch in loader)
    return first == list(range(500)), first == second


def _two_epochs(loader: Any) -> Any:
    return [list(loader), list(loader)]


def _with_float64(loader: Any) -> Any:
    # DataLoader's workers begin with the first next().
    torch.set_default_dtype(torch.float64)
    try:
        return list(loader)
    finally:
        torch.set_default_dtype(torch.float32)


def _and_no_longer(loader: Any) -> Any:
    try:
        return list(loader)
    finally:
        default_collate_fn_map.pop(m.Bag, None)
        default_collate_fn_map[str] = collate_str_fn


def _collate_bags(bags: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.tensor([bag.index for bag in bags])


def _collate_texts(texts: Any, *, collate_fn_map: Any = None) -> Any:
    return "+".join(texts)


def _attributes(loader: Any) -> Any:
    return {name: getattr(loader, name) for name in ATTRIBUTES}


def _samplers(loader: Any) -> Any:
    kinds = [type(each) for each in (loader.sampler, loader.batch_sampler, loader.dataset)]
    return kinds, list(loader.sampler), list(loader.batch_sampler), loader._auto_collation, loader._dataset_kind


def _set_batch_size(loader: Any) -> Any:
    texts = []
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        try:
            setattr(loader, name, None)
        except ValueError as error:
            texts.append(str(error).replace(type(loader).__name__, "DataLoader"))
    return texts


def _own_attribute(loader: Any) -> Any:
    loader.name = "train"
    return vars(loader)["name"], pickle.dumps(loader.collate_fn)
