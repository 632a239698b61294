"""build stores all samples of a cache at once, by the daemon's workers."""

from __future__ import annotations

import functools
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.data import Dataset

from prefetchd.wire.errors import CallerError, RemoteError
from prefetchd_client.sample_cache.outcomes import REFUSED, UNFIT

Advanced = Callable[[int], None]

BATCH = 16
BUFFER_BATCHES = 32
ROUNDS = 4
"""The most passes over what is missing: what another process was storing when we came, and then died, is stored in the
next."""


class Buildable(Protocol):
    """Declares what of a SampleCache is needed to fill it."""

    @property
    def directory(self) -> Path: ...

    def __len__(self) -> int: ...

    def refresh(self) -> None: ...

    def stored(self) -> int: ...

    def missing(self) -> list[int]: ...

    def store(self, index: int) -> int: ...


class Storing(Dataset[Any]):
    """Stores each missing sample, and has the outcome in its place."""

    def __init__(self, cache: Buildable, missing: list[int]) -> None:
        self.cache = cache
        self.missing = torch.tensor(missing)

    def __len__(self) -> int:
        return len(self.missing)

    def __getitem__(self, at: int) -> tuple[int, int]:
        index = int(self.missing[at])
        return index, self.cache.store(index)


def build(cache: Buildable, *, workers: int, progress: bool | None, socket: str | None) -> int:
    """Stores all missing samples, as SampleCache.build() promises."""
    cache.refresh()
    shown = sys.stderr.isatty() if progress is None else progress
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    before = cache.stored()
    if len(cache):
        # The first sample decides how all look, and how many have a place.
        _check(cache, 0, cache.store(0))
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        for _ in range(ROUNDS):
            if missing := cache.missing():
                task = bar.add_task("storing samples", total=len(missing))
                _round(cache, missing, workers, socket, functools.partial(bar.advance, task))
    if missing := cache.missing():
        raise RemoteError(f"{len(missing)} samples are still being stored by other processes; build() again")
    return cache.stored() - before


def _round(cache: Buildable, missing: list[int], workers: int, socket: str | None, advanced: Advanced) -> None:
    # Loaders import the cache.
    from prefetchd_client.loader.loader import PrefetchLoader

    loader = PrefetchLoader(
        Storing(cache, missing),
        batch_size=BATCH,
        num_workers=workers,
        buffer=BUFFER_BATCHES,
        stream=f"building a sample cache {uuid.uuid4().hex[:8]}",
        # What is made depends on what is there: nobody is to find it again.
        fingerprint_extra=uuid.uuid4().hex,
        rank=0,
        world_size=1,
        socket=socket,
    )
    with loader:
        for indices, results in loader:
            for index, what in zip(indices.tolist(), results.tolist()):
                _check(cache, index, what)
            advanced(len(indices))


def _check(cache: Buildable, index: int, what: int) -> None:
    if what == UNFIT:
        raise CallerError(
            f"sample {index} has not the structure, types or shapes of sample 0; allowed: samples that are alike "
            "(Resize in the dataset makes them so)"
        )
    if what == REFUSED:
        raise RemoteError(f"sample {index} cannot be stored in {cache.directory}; the warning on stderr says why")
