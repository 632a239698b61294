"""What scripts do with loaders and batches beyond a loop."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch

from tests.compatibility import material as m
from tests.compatibility.batches import each
from tests.compatibility.case import Loading, case, loading
from tests.compatibility.iteration import using

OWN_MEMORY = "batches lie in the ring, which is shared memory that torch did not make; it copies what is put in a queue"


def changed(change: Any, dataset: Any = None, **arguments: Any) -> Loading:
    """One epoch before the change, one after it."""

    def use(loader: Any) -> Any:
        before = list(loader)
        change(loader)
        return before, list(loader)

    return loading(m.Made(int) if dataset is None else dataset, **({"batch_size": 3, "use": use} | arguments))


def endless(kind: Any) -> Any:
    """As some libraries keep DataLoader's workers over epochs."""

    class Endless:
        def __init__(self, sampler: Any) -> None:
            self.sampler = sampler

        def __iter__(self) -> Any:
            while True:
                yield from self.sampler

    class Infinite(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
            self.iterator = super().__iter__()

        def __iter__(self) -> Any:
            for _ in range(len(self.batch_sampler.sampler)):
                yield next(self.iterator)

    return Infinite


# --- what is changed between epochs ---


@case("iteration")
def a_dataset_that_is_changed_between_epochs() -> Loading:
    return changed(lambda loader: setattr(loader.dataset, "make", float))


@case("iteration")
def a_dataset_that_grows_between_epochs() -> Loading:
    return changed(lambda loader: setattr(loader.dataset, "length", 14))


@case("iteration")
def a_list_that_grows_between_epochs() -> Loading:
    return changed(lambda loader: loader.dataset.append(99), dataset=[1, 2, 3, 4])


@case("iteration")
def a_tensor_that_is_written_to_between_epochs() -> Loading:
    return changed(lambda loader: loader.dataset.mul_(2), dataset=torch.arange(10))


@case("iteration")
def a_collate_fn_that_is_set_between_epochs() -> Loading:
    return changed(lambda loader: setattr(loader, "collate_fn", m.as_it_is))


@case("iteration")
def a_dataset_that_is_changed_before_the_first_epoch_of_persistent_workers() -> Loading:
    def use(loader: Any) -> Any:
        loader.dataset.make = float
        return list(loader), list(loader)

    return loading(m.Made(int), batch_size=3, persistent_workers=True, use=use)


@case("iteration")
def a_dataset_that_is_changed_between_epochs_of_persistent_workers() -> Loading:
    return changed(lambda loader: setattr(loader.dataset, "make", float), persistent_workers=True)


@case("iteration")
def a_tensor_that_is_written_to_between_epochs_of_persistent_workers() -> Loading:
    return changed(lambda loader: loader.dataset.mul_(2), dataset=torch.arange(10), persistent_workers=True)


@case("iteration")
def a_collate_fn_that_is_set_between_epochs_of_persistent_workers() -> Loading:
    return changed(lambda loader: setattr(loader, "collate_fn", m.as_it_is), persistent_workers=True)


@case("iteration")
def a_sampler_that_is_changed_between_epochs_of_persistent_workers() -> Loading:
    return changed(lambda loader: loader.sampler.append(7), sampler=[3, 1, 4], persistent_workers=True)


# --- the loader ---


@case("iteration", workers=0)
def a_loader_backwards() -> Loading:
    def use(loader: Any) -> Any:
        try:
            return reversed(loader)
        except TypeError as error:
            return str(error).replace(type(loader).__name__, "DataLoader")

    return using(use)


@case("iteration", workers=0)
def a_number_in_a_loader() -> Loading:
    return using(lambda loader: (4 in loader, 99 in loader), batch_size=None)


@case("iteration")
def sum_and_sorted() -> Loading:
    return using(lambda loader: (sum(loader), sorted(loader, reverse=True)), batch_size=None)


@case("iteration", workers=0)
def a_loader_that_is_pickled() -> Loading:
    return using(lambda loader: list(pickle.loads(pickle.dumps(loader))))


@case("iteration", workers=0)
def a_loader_that_is_copied() -> Loading:
    return using(lambda loader: list(copy.copy(loader)))


@case("iteration", workers=0)
def an_iterator_that_is_pickled() -> Loading:
    def use(loader: Any) -> Any:
        try:
            return pickle.dumps(iter(loader))
        except Exception as error:
            return type(error)

    return using(use)


@case("iteration")
def a_subclass_with_an_iter_of_its_own() -> Loading:
    def use(loader: Any) -> Any:
        class Doubled(type(loader)):  # type: ignore[misc]
            def __iter__(self) -> Any:
                for batch in super().__iter__():
                    yield batch * 2

        doubled = Doubled(m.Made(int, 10), batch_size=3)
        return list(doubled), len(doubled), list(doubled)

    return using(use)


@case("iteration")
def a_subclass_whose_iterator_never_ends() -> Loading:
    def use(loader: Any) -> Any:
        infinite = endless(type(loader))(m.Made(int, 10), batch_size=3, num_workers=2)
        return list(infinite), list(infinite)

    return using(use)


# --- batches ---


@case("iteration")
def batches_that_are_pickled_saved_and_copied() -> Loading:
    def use(loader: Any) -> Any:
        file, batches = io.BytesIO(), list(loader)
        torch.save(batches, file)
        file.seek(0)
        return pickle.loads(pickle.dumps(batches)), torch.load(file), copy.deepcopy(batches)

    return using(use)


@case("iteration")
def batches_in_a_graph() -> Loading:
    def use(loader: Any) -> Any:
        weight, gradients = torch.ones(6, requires_grad=True), []
        for batch in loader:
            batch.requires_grad_()
            (batch.flatten(1) @ weight).sum().backward()
            gradients.append(batch.grad)
        return gradients, weight.grad

    return each(m.tensor, use=use)


@case("iteration")
def batches_that_are_resized() -> Loading:
    return using(lambda loader: [batch.resize_(2).clone() for batch in loader])


@case("iteration")
def batches_as_arrays() -> Loading:
    return using(lambda loader: [batch.numpy() for batch in loader])


@case("iteration")
def batches_that_are_shared_with_a_process() -> Loading:
    return using(lambda loader: [batch.share_memory_().is_shared() and batch for batch in loader])


@case("iteration")
def batches_through_a_queue_of_torch() -> Loading:
    def use(loader: Any) -> Any:
        queue = torch.multiprocessing.get_context("fork").Queue()
        seen = []
        for batch in loader:
            queue.put(batch)
            seen.append(queue.get().clone())
        return seen

    return using(use)


@case("iteration", reason=OWN_MEMORY, difference=r"\[\d\]: True and False")
def batches_are_in_shared_memory() -> Loading:
    return using(lambda loader: [batch.is_shared() for batch in loader])


@case("iteration")
def under_inference_mode() -> Loading:
    def use(loader: Any) -> Any:
        with torch.inference_mode():
            return [(batch.is_inference(), batch * 2) for batch in loader]

    return using(use)


@case("iteration")
def under_no_grad() -> Loading:
    def use(loader: Any) -> Any:
        with torch.no_grad():
            return [(batch.requires_grad, torch.is_grad_enabled(), batch) for batch in loader]

    return using(use)


@case("iteration")
def concatenated_by_torch() -> Loading:
    return using(lambda loader: (torch.cat(list(loader)), torch.stack([*loader][:2])))
