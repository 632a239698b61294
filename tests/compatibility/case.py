"""A case: the arguments of a loader, how it is used, and why the two loaders may differ if they may."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

GROUPS = ("batches", "datasets", "errors", "arguments", "iteration", "warnings")

MOST_OUTCOMES = 64

CASES: dict[str, Case] = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """`make` gives a new Loading each time. `workers` is DataLoader's num_workers: with 0 its batches come as
    collate_fn made them, with 2 as a queue between processes delivers them. With a `reason` the two must differ, and
    each line that tells how must match the pattern `difference` as a whole."""

    name: str
    group: str
    workers: int
    reason: str
    difference: str
    needs: tuple[str, ...]
    make: Callable[[], Loading]

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def missing(self) -> str:
        """The package that it needs and that is not there, or nothing."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), "")


@dataclasses.dataclass(frozen=True)
class Loading:
    """`use` is called with the loader and gives what is to be compared."""

    arguments: dict[str, Any]
    use: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception in the place of a batch, or of everything."""

    error: BaseException


class Separate(list[Any]):
    """Things that are compared each by itself: that one object is in two of them means nothing."""


def every_batch(loader: Any) -> Separate:
    """One epoch as it comes, with the exceptions where they come."""
    outcomes = Separate()
    iterator = iter(loader)
    while len(outcomes) < MOST_OUTCOMES:
        try:
            outcomes.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            outcomes.append(Raised(error))
    return outcomes


def loading(dataset: Any, *, use: Callable[[Any], Any] = every_batch, **arguments: Any) -> Loading:
    return Loading({"dataset": dataset, **arguments}, use)


Maker = Callable[[], Loading]


def case(
    group: str, *, workers: int = 2, reason: str = "", difference: str = "", needs: str = ""
) -> Callable[[Maker], Maker]:
    """Registers the decorated function under its own name."""
    assert group in GROUPS
    assert bool(reason) == bool(difference), "a reason is for a certain difference"

    def register(make: Maker) -> Maker:
        name = make.__name__
        assert name not in CASES, name
        CASES[name] = Case(name, group, workers, reason, difference, tuple(needs.split()), make)
        return make

    return register
