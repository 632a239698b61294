"""Iteration: every way a loop may use a loader."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading

ONE_ITERATOR = "with persistent_workers DataLoader has one iterator, which iter() begins anew; ours are independent"


def using(use: Callable[[Any], Any], length: int = 20, **arguments: Any) -> Loading:
    """Twenty numbers in batches of three, in their order."""
    return loading(m.Made(int, length), use=use, **({"batch_size": 3} | arguments))


@case("iteration", workers=0)
def length() -> Loading:
    return using(lambda loader: (len(loader), len(iter(loader))))


@case("iteration", workers=0)
def length_with_drop_last() -> Loading:
    return using(len, drop_last=True)


@case("iteration", workers=0)
def length_without_batching() -> Loading:
    return using(len, batch_size=None)


@case("iteration", workers=0)
def length_of_nothing() -> Loading:
    return using(lambda loader: (len(loader), list(loader)), length=0)


@case("iteration")
def several_epochs() -> Loading:
    return using(lambda loader: [list(loader) for _ in range(3)])


@case("iteration")
def an_early_break() -> Loading:
    def use(loader: Any) -> Any:
        seen = []
        for batch in loader:
            seen.append(batch)
            if len(seen) == 2:
                break
        return seen, list(loader)

    return using(use)


@case("iteration")
def a_break_at_once_in_every_epoch() -> Loading:
    return using(lambda loader: [next(iter(loader)) for _ in range(5)])


@case("iteration")
def zip_of_a_loader_with_itself() -> Loading:
    return using(lambda loader: list(zip(loader, loader)))


@case("iteration")
def zip_of_two_iterators_of_different_pace() -> Loading:
    def use(loader: Any) -> Any:
        one, other = iter(loader), iter(loader)
        return [next(one), next(one), next(other), next(one), next(other), list(other), list(one)]

    return using(use)


@case("iteration")
def nested_loops() -> Loading:
    return using(lambda loader: [(outer, inner) for outer in loader for inner in loader], length=8)


@case("iteration")
def validation_inside_of_training() -> Loading:
    def use(loader: Any) -> Any:
        seen = []
        for step, batch in enumerate(loader):
            seen.append(batch)
            if step % 3 == 1:
                seen += list(loader)
        return seen

    return using(use)


@case("iteration")
def iter_as_a_probe() -> Loading:
    def use(loader: Any) -> Any:
        iter(loader)
        probe = iter(loader)
        return list(loader), list(probe), list(loader)

    return using(use)


@case("iteration")
def next_of_iter() -> Loading:
    return using(lambda loader: (next(iter(loader)), next(iter(loader)), list(loader)))


@case("iteration", workers=0)
def next_of_a_loader_itself() -> Loading:
    return using(lambda loader: _text_of(lambda: next(loader), loader))


@case("iteration", workers=0)
def indexing_a_loader() -> Loading:
    return using(lambda loader: _text_of(lambda: loader[0], loader))


@case("iteration")
def next_after_the_end() -> Loading:
    def use(loader: Any) -> Any:
        iterator = iter(loader)
        return list(iterator), list(iterator), next(iterator, "end")

    return using(use)


@case("iteration")
def an_iterator_is_its_own_iterator() -> Loading:
    def use(loader: Any) -> Any:
        iterator = iter(loader)
        return iter(iterator) is iterator, isinstance(iterator, Iterator), next(iter(iterator)), next(iterator)

    return using(use)


@case("iteration")
def iterators_are_not_the_same() -> Loading:
    return using(lambda loader: iter(loader) is iter(loader))


@case("iteration", reason=ONE_ITERATOR, difference=r"\[[01]\]\.bytes: .*")
def two_iterators_with_persistent_workers() -> Loading:
    def use(loader: Any) -> Any:
        one = iter(loader)
        next(one)
        other = iter(loader)
        return [next(one), next(other)]

    return using(use, persistent_workers=True)


@case("iteration")
def a_loader_that_is_deleted_in_an_epoch() -> Loading:
    def use(loader: Any) -> Any:
        return list(_iterator_of_a_deleted_one(type(loader)))

    return using(use)


@case("iteration")
def an_iterator_that_is_deleted_in_an_epoch() -> Loading:
    def use(loader: Any) -> Any:
        iterator = iter(loader)
        first = next(iterator)
        del iterator
        gc.collect()
        return first, list(loader)

    return using(use)


@case("iteration")
def use_in_another_thread() -> Loading:
    return using(lambda loader: _in_a_thread(lambda: [list(loader), list(loader)]))


@case("iteration")
def begun_in_one_thread_and_ended_in_another() -> Loading:
    def use(loader: Any) -> Any:
        iterator = iter(loader)
        return next(iterator), _in_a_thread(lambda: list(iterator)), list(loader)

    return using(use)


@case("iteration")
def enumerate_from_one() -> Loading:
    return using(lambda loader: list(enumerate(loader, 1)))


@case("iteration")
def list_of_many_batches() -> Loading:
    return using(list, length=200, batch_size=2)


@case("iteration")
def every_batch_is_kept() -> Loading:
    def use(loader: Any) -> Any:
        kept = [batch for _ in range(3) for batch in loader]
        return torch.cat(kept)

    return using(use, length=60)


@case("iteration")
def what_is_written_into_a_batch_stays_there() -> Loading:
    def use(loader: Any) -> Any:
        seen = []
        for batch in loader:
            batch.mul_(-1)
            seen.append(batch.clone())
        return seen, list(loader)

    return using(use)


@case("iteration")
def batches_after_the_loader_is_gone() -> Loading:
    def use(loader: Any) -> Any:
        other = type(loader)(m.Made(int, 9), batch_size=3, num_workers=2)
        kept = list(other)
        del other
        gc.collect()
        return kept

    return using(use)


@case("iteration")
def chain_cycle_islice_and_map() -> Loading:
    def use(loader: Any) -> Any:
        chained = list(itertools.chain(loader, loader))
        cycled = list(itertools.islice(itertools.cycle(loader), 10))
        return (
            chained,
            cycled,
            list(map(torch.sum, itertools.islice(loader, 3))),
            max(int(each.max()) for each in loader),
        )

    return using(use)


@case("iteration")
def unpacking() -> Loading:
    def use(loader: Any) -> Any:
        first, *rest, last = loader
        return first, rest, last, [*loader]

    return using(use)


@case("iteration", workers=0)
def truth_and_isinstance() -> Loading:
    return using(lambda loader: (bool(loader), isinstance(loader, DataLoader), hasattr(loader, "__next__")))


@case("iteration", workers=0)
def an_exception_in_the_loop() -> Loading:
    def use(loader: Any) -> Any:
        try:
            for batch in loader:
                if 6 in batch:
                    raise InterruptedError("of the trainer's own")
        except InterruptedError as error:
            return error.args, list(loader)

    return using(use)


@case("iteration")
def an_infinite_generator_over_epochs() -> Loading:
    def use(loader: Any) -> Any:
        def endless() -> Any:
            while True:
                yield from loader

        return list(itertools.islice(endless(), 17))

    return using(use)


@case("iteration")
def an_iterator_that_prefetches_one_batch() -> Loading:
    """As accelerate does: batch n + 1 is fetched before n is yielded."""

    def use(loader: Any) -> Any:
        def ahead() -> Any:
            iterator = iter(loader)
            current = next(iterator)
            for following in iterator:
                yield current
                current = following
            yield current

        return list(ahead())

    return using(use)


def _iterator_of_a_deleted_one(kind: Any) -> Any:
    loader = kind(m.Made(int, 9), batch_size=3, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    del loader
    gc.collect()
    return iterator


def _in_a_thread(work: Callable[[], Any]) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found


def _text_of(work: Callable[[], Any], loader: Any) -> Any:
    try:
        return work()
    except Exception as error:
        return type(error), str(error).replace(type(loader).__name__, "DataLoader")
