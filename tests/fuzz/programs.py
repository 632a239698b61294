"""Describe a program: a dataset, a loader's arguments, and what the training loop does. run() is that program, for
DataLoader and PrefetchLoader alike."""

from __future__ import annotations

import copy
import dataclasses
import random
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from tests.fuzz import parts

PAUSE_S = 0.08
"""As long as a loop is at something else. Loaders that run ahead use the time."""

_T = TypeVar("_T")

WRITES_FILES = (parts.SmallFile, parts.IndexFile, parts.MappedFile, parts.FileStream)
"""Datasets whose set() writes a file."""

Choose = Callable[[str, tuple[Any, ...]], Any]
"""choose(name, options) picks one; the first option is the simplest."""


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One pass of the loop: when it sets the state that samples read, and where it leaves off."""

    before: int | None = None
    """Set before iter()."""
    at: int | None = None
    """Set between iter() and the first next()."""
    within: int | None = None
    """Set after the second batch."""
    breaks: bool = False
    """Left after two batches."""
    raises: bool = False
    """Left by an exception after one batch."""
    pause: bool = False
    """Something else takes its time before the epoch."""


@dataclasses.dataclass(frozen=True)
class Program:
    """`how` the loaders are used:

    again       the loader is made anew for each epoch, on the same line
    second      another loader of the same dataset is iterated over between two epochs
    deepcopy    the loader is of a deep copy of the dataset
    together    two iterators of the loader take turns in each epoch
    resumed     the last epoch is broken off after one batch, and goes on in another loader by its state
    """

    part: str = "Pure"
    workers: int = 0
    persistent: bool = False
    batch_size: int | None = 4
    drop_last: bool = False
    order: str = "sequential"
    collate: str = "default"
    init: bool = False
    prefetch: int | None = None
    how: str = "once"
    epochs: tuple[Epoch, ...] = (Epoch(), Epoch())

    def __repr__(self) -> str:
        """Only what is not as by default."""
        return _short(self)

    @property
    def mark(self) -> int:
        """A number that another program does not have, and that each run of this one has."""
        return zlib.crc32(repr(self).encode())

    @property
    def is_random(self) -> bool:
        return getattr(parts.PARTS[self.part], "random", False)

    @property
    def is_iterable(self) -> bool:
        return issubclass(parts.PARTS[self.part], parts.Stream)


def _short(value: Any) -> str:
    if not dataclasses.is_dataclass(value):
        return f"({', '.join(map(_short, value))},)" if isinstance(value, tuple) else repr(value)
    changed = [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    defaults = type(value)()
    told = [f"{name}={_short(given)}" for name, given in changed if given != getattr(defaults, name)]
    return f"{type(value).__name__}({', '.join(told)})"


Epoch.__repr__ = _short  # type: ignore[method-assign,assignment]


def program(choose: Choose) -> Program:
    """Make a program of what `choose` picks. Combinations that DataLoader itself refuses, or in which its outcome
    depends on how fast its workers are, are left out."""
    kind = parts.PARTS[choose("part", tuple(parts.PARTS))]
    iterable = issubclass(kind, parts.Stream)
    workers = choose("workers", (0, 2, 1, 3))
    batch_size = choose("batch_size", (4, None, 1, 5))
    orders = ("sequential",) if iterable else ("sequential", "shuffle", "generator", "sampler", "batch_sampler")
    order = choose("order", orders) if batch_size is not None else "sequential"
    persistent = workers > 0 and choose("persistent", (False, True))
    hows = ("once", "again", "second", "deepcopy", *(() if persistent else ("together",)), "resumed")
    how = choose("how", hows)
    # DataLoader goes on with the same workers; who resumes has new ones, and they see what was set since.
    is_set = not (persistent and how == "resumed")
    epochs = [_epoch(choose, workers, kind) for number in range(choose("epochs", (2, 1, 3)))]
    if persistent and kind is parts.StatefulStream:
        # Rule "left" of the oracle.
        epochs = [dataclasses.replace(each, breaks=False, raises=False) for each in epochs]
    return Program(
        part=kind.__name__,
        workers=workers,
        persistent=persistent,
        batch_size=batch_size,
        drop_last=order != "batch_sampler" and batch_size is not None and choose("drop_last", (False, True)),
        order=order,
        collate=choose("collate", ("default", "summed", "collator")) if batch_size is not None else "default",
        init=workers > 0 and choose("init", (False, True)),
        prefetch=choose("prefetch", (None, 1, 5)) if workers else None,
        how=how,
        epochs=tuple(
            each if is_set or not number else dataclasses.replace(each, before=None)
            for number, each in enumerate(epochs)
        ),
    )


def _epoch(choose: Choose, workers: int, kind: type) -> Epoch:
    values = (None, 1, 2, 3)
    leaves = choose("leaves", ("", "breaks", "raises"))
    return Epoch(
        before=choose("before", values),
        # Workers of DataLoader begin with iter(): whether they see it is a race.
        at=None if workers else choose("at", values),
        # A file that is written within an epoch is seen when the next one begins.
        within=None if workers or kind in WRITES_FILES else choose("within", values),
        breaks=leaves == "breaks",
        raises=leaves == "raises",
        pause=choose("pause", (False, True)),
    )


class Interrupted(Exception):  # noqa: N818 - the loop's own
    """The loop's own error."""


def run(what: Program, kind: Callable[..., Any], directory: Path, *, ours: bool) -> list[Any]:
    """Run the program with loaders of this kind. Return what it has seen: for each epoch its batches, and what it finds
    in the dataset."""
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    dataset: Any = parts.PARTS[what.part](directory, what.mark)
    seen: list[Any] = []
    make = _loaders(what, kind, dataset)
    loader = make()
    for number, epoch in enumerate(what.epochs):
        if epoch.pause:
            time.sleep(PAUSE_S)
        if epoch.before is not None:
            dataset.set(epoch.before)
        if what.how == "again" and number:
            loader = make()
        resumes = what.how == "resumed" and number == len(what.epochs) - 1
        batches = _resumed(make, loader, ours=ours) if resumes else _epoch_of(epoch, loader, dataset, what)
        seen.append(_outcome(batches))
        if what.how == "second":
            seen.append(_outcome(iter(make())))
        if not what.workers or not what.part.startswith("Shared"):
            seen.append(("told", dataset.told()))
    return seen


def _loaders(what: Program, kind: Callable[..., Any], dataset: Any) -> Callable[[], Any]:
    """Return what makes the program's loader; each on one line, as in a script."""
    collate = {"default": None, "summed": parts.summed, "collator": parts.Collator()}[what.collate]
    generator = torch.Generator().manual_seed(3)
    sampler = parts.Backwards(parts.LENGTH)

    def make() -> Any:
        of = copy.deepcopy(dataset) if what.how == "deepcopy" else dataset
        arguments: dict[str, Any] = {"num_workers": what.workers, "collate_fn": collate}
        if what.workers:
            arguments |= {"persistent_workers": what.persistent, "prefetch_factor": what.prefetch}
            arguments["worker_init_fn"] = parts.seed_worker if what.init else None
        if what.order == "batch_sampler":
            batches = torch.utils.data.BatchSampler(sampler, what.batch_size or 1, drop_last=False)
            return kind(of, batch_sampler=batches, **arguments)
        arguments |= {"batch_size": what.batch_size, "drop_last": what.drop_last}
        if what.order == "shuffle":
            arguments["shuffle"] = True
        if what.order == "generator":
            arguments |= {"shuffle": True, "generator": generator}
        if what.order == "sampler":
            arguments["sampler"] = sampler
        return kind(of, **arguments)

    return make


def _epoch_of(epoch: Epoch, loader: Any, dataset: Any, what: Program) -> Iterator[Any]:
    iterator = iter(loader)
    beside = iter(loader) if what.how == "together" else None
    if epoch.at is not None:
        dataset.set(epoch.at)
    for number, batch in enumerate(iterator):
        yield batch
        if beside is not None and (other := next(beside, None)) is not None:
            yield other
        if epoch.raises and number == 0:
            raise Interrupted
        if number == 1 and epoch.breaks:
            break
        if number == 1 and epoch.within is not None:
            dataset.set(epoch.within)


def _resumed(make: Callable[[], Any], loader: Any, *, ours: bool) -> Iterator[Any]:
    """Yield an epoch that is broken off after one batch and goes on: DataLoader simply goes on."""
    iterator = iter(loader)
    first = next(iterator, None)
    if first is None:
        return
    yield first
    if ours:
        state = loader.state_dict()
        del iterator
        loader = make()
        loader.load_state_dict(state)
        iterator = iter(loader)
    yield from iterator


def _outcome(batches: Iterator[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        for batch in batches:
            found.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
    except Interrupted:
        found.append("interrupted")
    except Exception as error:
        found.append(f"raised {type(error).__name__}")
    return found
