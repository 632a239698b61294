"""Processes, threads and time: what DataLoader lets its workers be, and where it may be used."""

from __future__ import annotations

import gc
import pathlib
import threading
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import torch

from tests.compatibility import material as m
from tests.compatibility.arguments import refused, ten
from tests.compatibility.case import Loading, Raised, case, loading
from tests.compatibility.datasets import new_directory
from tests.scenario.forked import forked, told_by

TIMED = "without workers DataLoader cannot keep a timeout and fails an assertion of its own; ours has workers then too"
FORK = (
    "the parent's session with the daemon is not the child's: it makes a loader of its own, which finds the same ring"
)
THREADS = "a loader has one session with the daemon, for one thread at a time: give each thread a loader of its own"
FAILED = "without its worker_init_fn no worker can begin: the stream has failed, and the user's exception is the cause"
WHY = "after DataLoader's words ours goes on with what was waited for: the worker, its sample, its stack"
PASSED = "DataLoader timed out after 8 seconds"
PATIENCE_S = 2.0


def refuses(worker: int) -> None:
    raise LookupError("no such worker")


def note(worker: int) -> None:
    m.Bag.noted = worker >= 0  # type: ignore[attr-defined]


def noted(index: int) -> bool:
    return hasattr(m.Bag, "noted")


def stuck(index: int) -> int:
    if index == 4:
        threading.Event().wait()
    return index


def drawn(index: int) -> Any:
    return float(torch.rand(())), float(np.random.rand())


def until_an_error(loader: Any) -> Any:
    """The batches, and what ended them."""
    batches = []
    try:
        for batch in loader:
            batches.append(batch)
    except Exception as error:
        return batches, Raised(error)
    return batches


# --- in_order, contexts, timeouts ---


@case("arguments")
def in_order_false() -> Loading:
    return ten(batch_size=4, in_order=False, use=lambda loader: sorted(batch.tolist() for batch in loader))


@case("arguments", workers=0)
def in_order_false_without_workers() -> Loading:
    return ten(batch_size=4, in_order=False)


@case("arguments")
def multiprocessing_context_spawn() -> Loading:
    def use(loader: Any) -> Any:
        try:
            return list(loader)
        finally:
            # Python starts it for what 'spawn' shares, and keeps it. It removes what is still there.
            gc.collect()
            resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]

    return ten(batch_size=4, multiprocessing_context="spawn", num_workers=1, use=use)


@case("arguments")
def multiprocessing_context_that_is_an_object() -> Loading:
    return ten(batch_size=4, multiprocessing_context=torch.multiprocessing.get_context("fork"))


@case("arguments")
def multiprocessing_context_of_another_type() -> Loading:
    return refused(multiprocessing_context=3)


@case("errors", reason=WHY, difference=rf"\[1\]\.(str|repr|args\[0\]): .*'{PASSED}'\)?.? and .*'{PASSED}: worker \d.*")
def a_timeout_that_passes() -> Loading:
    return loading(m.Made(stuck), batch_size=2, num_workers=1, timeout=8, use=until_an_error)


@case("arguments", workers=0, reason=TIMED, difference=r": AssertionError\('_Single.* timeout == 0'\) and .*Separate'>")
def timeout_without_workers() -> Loading:
    return ten(batch_size=4, timeout=50)


# --- worker_init_fn ---


@case("arguments", workers=0)
def worker_init_fn_without_workers() -> Loading:
    return loading(m.Made(noted), batch_size=4, worker_init_fn=note)


@case("errors", reason=FAILED, difference=": <class 'LookupError'> and <class '.*StreamFailedError'>")
def worker_init_fn_that_raises() -> Loading:
    def use(loader: Any) -> Any:
        try:
            return next(iter(loader))
        except Exception as error:
            return type(error)

    return ten(batch_size=4, worker_init_fn=refuses, use=use)


# --- randomness ---


@case("arguments", workers=0)
def the_same_seed_gives_the_same_order() -> Loading:
    def use(loader: Any) -> Any:
        orders = []
        for seed in (7, 7, 8):
            torch.manual_seed(seed)
            orders.append(torch.cat(list(type(loader)(m.Made(int, 50), batch_size=8, shuffle=True))).tolist())
        return orders[0] == orders[1], orders[0] == orders[2]

    return ten(use=use)


@case("arguments")
def samples_draw_different_numbers() -> Loading:
    def use(loader: Any) -> Any:
        epochs = [[torch.cat([batch[kind] for batch in loader]) for kind in range(2)] for _ in range(2)]
        return [[len(numbers.unique()) for numbers in epoch] for epoch in epochs], bool(
            (epochs[0][0] == epochs[1][0]).any()
        )

    return loading(m.Made(drawn), batch_size=4, use=use)


# --- forks and threads ---


@case("iteration", workers=0)
def batches_in_a_forked_child() -> Loading:
    def use(loader: Any) -> Any:
        held = list(loader)
        return told_by(forked(lambda: [batch.tolist() for batch in held]))

    return ten(batch_size=4, use=use)


@case("iteration", workers=0)
def a_loader_that_is_made_in_a_forked_child() -> Loading:
    def use(loader: Any) -> Any:
        list(loader)
        return told_by(forked(lambda: [batch.tolist() for batch in type(loader)(m.Made(int), batch_size=4)]))

    return ten(batch_size=4, use=use)


@case(
    "iteration", workers=0, reason=FORK, difference=r": '\[\[0, 1.*\]\]' and .*'ForkedError'.*make one of its own in .*"
)
def use_after_a_fork() -> Loading:
    def batches(loader: Any) -> Any:
        try:
            return [batch.tolist() for batch in loader]
        except Exception as error:
            return type(error).__name__, str(error)

    return loading(m.Made(int), batch_size=2, use=lambda loader: told_by(forked(lambda: batches(loader))))


@case("iteration", reason=THREADS, difference=r": .*'0 errors'.* and .*1 errors.*two threads are in next.*")
def two_threads_at_once() -> Loading:
    """Both wait, for batches that are not made before one of them has given up or the patience is over."""
    go_on = pathlib.Path(new_directory()) / "go on"

    def get(index: int) -> int:
        while not go_on.exists():
            threading.Event().wait(0.01)
        return index

    def use(loader: Any) -> Any:
        errors: list[BaseException] = []
        ended = threading.Event()

        def work() -> None:
            try:
                next(iter(loader))
            except Exception as error:
                errors.append(error)
            ended.set()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        ended.wait(PATIENCE_S)
        go_on.touch()
        for thread in threads:
            thread.join()
        return [f"{len(errors)} errors", *map(str, errors)]

    return loading(m.Made(get), num_workers=1, batch_size=2, use=lambda loader: str(use(loader)))
