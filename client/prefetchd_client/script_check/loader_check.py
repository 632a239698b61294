"""One loader of a script, run for a few batches with DataLoader and with PrefetchLoader."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from prefetchd_client.loader.loader import PrefetchLoader
from prefetchd_client.script_check.differences import Difference, difference
from prefetchd_client.script_check.forked_run import ForkedRun, LostBatch, Run, forked_run


@dataclasses.dataclass(frozen=True)
class LoaderCheck:
    """Both runs. `is_random`: two runs of DataLoader that begin with the same state differ as well. `after_cuda`: the
    script had begun to use CUDA, which a fork cannot go on with: batches were not pinned."""

    theirs: Run
    ours: Run
    unequal: Difference | None = None
    unequal_at: int = 0
    is_random: bool = False
    after_cuda: bool = False


def check_loader(
    loader: DataLoader[Any], batches: int, begin: Callable[[Any], Iterator[Any]], within_s: float
) -> LoaderCheck:
    """Runs both for so many `batches` at most, and each no longer than `within_s`; `begin` is DataLoader's own
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

    def begin_ours(stack: contextlib.ExitStack) -> Iterator[Any]:
        return iter(stack.enter_context(PrefetchLoader.wrap(in_the_fork(), fresh=True)))

    with (
        # Before both runs whose times are told: the files that they read are in memory by then.
        forked_run(begin_theirs, batches, within_s) as former,
        forked_run(begin_theirs, batches, within_s) as theirs,
        forked_run(begin_ours, batches, within_s, prints=True) as ours,
    ):
        at, found, is_random = _compare(former, theirs, ours)
        return LoaderCheck(theirs.run, ours.run, found, at, is_random, after_cuda)


_former_iterators: list[Any] = []


def _compare(former: ForkedRun, theirs: ForkedRun, ours: ForkedRun) -> tuple[int, Difference | None, bool]:
    """The first batch at which ours differs, in what, and whether DataLoader's two runs differ until there, too. One
    batch of each run is here at a time."""
    is_random = False
    for at in range(min(theirs.run.count, ours.run.count)):
        one, other = theirs.batch(), ours.batch()
        if at < former.run.count:
            is_random = difference(former.batch(), one) is not None or is_random
        lost = next((each for each in (one, other) if isinstance(each, LostBatch)), None)
        found = difference(one, other) if lost is None else Difference(f"batch cannot be compared: {lost.why}")
        if found is not None:
            return at, found, is_random and found.is_of_values
    if theirs.run.count != ours.run.count and not (theirs.run.error or ours.run.error):
        return 0, Difference(f"the epoch has {ours.run.count} batches, with DataLoader {theirs.run.count}"), False
    return 0, None, False
