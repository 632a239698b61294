"""check_loader runs one loader of a script for a few batches with DataLoader and with PrefetchLoader."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from prefetchd_client.loader.loader import PrefetchLoader
from prefetchd_client.script_check.differences import Difference, difference
from prefetchd_client.script_check.forked_run import Begin, ForkedRun, LostBatch, Run, forked_run

OTHER_SEEDS = 4
"""The number of other seeds that are tried where values differ: one that draws a flip of a coin may draw the same
again."""


@dataclasses.dataclass(frozen=True)
class LoaderCheck:
    """Holds both runs. `is_random`: two runs of DataLoader that begin with the same state differ as well. `is_drawn`:
    so does one with another seed, where only values differ. `after_cuda`: the script had begun to use CUDA, which a
    fork cannot go on with: batches were not pinned."""

    theirs: Run
    ours: Run
    unequal: Difference | None = None
    unequal_at: int = 0
    is_random: bool = False
    is_drawn: bool = False
    after_cuda: bool = False


def check_loader(
    loader: DataLoader[Any], batches: int, begin: Callable[[Any], Iterator[Any]], within_s: float
) -> LoaderCheck:
    """Runs both loaders for so many `batches` at most, and each no longer than `within_s`; `begin` is DataLoader's own
    __iter__. Each run is in a fork of its own: loader, dataset and random generators are left as they are. Raises
    nothing of the user's."""
    after_cuda = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def in_the_fork() -> DataLoader[Any]:
        if after_cuda:
            loader.pin_memory = False
        # Its workers, if they are persistent, are the script's. Kept: an iterator that ends would end them.
        _former_iterators.append(loader._iterator)
        loader._iterator = None
        return loader

    def begin_theirs(stack: contextlib.ExitStack) -> Iterator[Any]:
        # The end of the run is that of persistent workers, too.
        stack.callback(setattr, loader, "_iterator", None)
        return begin(in_the_fork())

    def begin_reseeded(seed: int) -> Begin:
        def begin_others(stack: contextlib.ExitStack) -> Iterator[Any]:
            _reseed(loader, seed)
            return begin_theirs(stack)

        return begin_others

    def begin_ours(stack: contextlib.ExitStack) -> Iterator[Any]:
        return iter(stack.enter_context(PrefetchLoader.wrap(in_the_fork(), fresh=True)))

    with (
        # Before both runs whose times are told: the files that they read are in memory by then.
        forked_run(begin_theirs, batches, within_s) as former,
        forked_run(begin_theirs, batches, within_s) as theirs,
        forked_run(begin_ours, batches, within_s, prints=True) as ours,
    ):
        at, found, is_random, one = _compare(former, theirs, ours)
        is_drawn = False
        if found is not None and found.is_of_values and not is_random:
            # Only now: runs take time, and most loaders need none of these.
            is_drawn = any(_is_another(at, one, begin_reseeded(seed), within_s) for seed in range(1, OTHER_SEEDS + 1))
        return LoaderCheck(theirs.run, ours.run, found, at, is_random, is_drawn, after_cuda)


_former_iterators: list[Any] = []


def _reseed(loader: DataLoader[Any], seed: int) -> None:
    """Has samples draw something else with DataLoader from here on. The order of a generator of the loader's own
    stays."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    if loader.generator is not None:
        # DataLoader draws the workers' seed from it, and a sampler that has the same one draws behind that.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        loader.generator = torch.Generator().manual_seed(seed)


def _is_another(at: int, one: Any, begin: Begin, within_s: float) -> bool:
    """Returns True when batch `at` of the run that begin() begins has other values than `one`."""
    with forked_run(begin, at + 1, within_s) as run:
        found = None
        for _ in range(run.run.count):
            found = difference(one, run.batch())
        return run.run.count > at and found is not None and found.is_of_values


def _compare(former: ForkedRun, theirs: ForkedRun, ours: ForkedRun) -> tuple[int, Difference | None, bool, Any]:
    """Returns the first batch at which ours differs, in what, whether DataLoader's two runs differ until there, too,
    and DataLoader's batch there. One batch of each run is here at a time."""
    is_random = False
    for at in range(min(theirs.run.count, ours.run.count)):
        one, other = theirs.batch(), ours.batch()
        if at < former.run.count:
            is_random = difference(former.batch(), one) is not None or is_random
        lost = next((each for each in (one, other) if isinstance(each, LostBatch)), None)
        found = difference(one, other) if lost is None else Difference(f"batch cannot be compared: {lost.why}")
        if found is not None:
            return at, found, is_random and found.is_of_values, one
    if theirs.run.count != ours.run.count and not (theirs.run.error or ours.run.error):
        return 0, Difference(f"the epoch has {ours.run.count} batches, with DataLoader {theirs.run.count}"), False, None
    return 0, None, False, None
