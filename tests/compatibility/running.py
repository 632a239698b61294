"""Runs a case with both loaders, and says how their outcomes differ."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Iterator
from typing import Any

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from prefetchd.wire.errors import PrefetchdError
from tests.compatibility.case import Case, Raised, Separate
from tests.compatibility.comparing import differences

BUFFER = "32MiB"
RACES = 4
"""As often DataLoader is run again when it lost one."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`differences` is empty when the outcomes are equal. `bare` are those errors of ours alone that are none of
    prefetchd's."""

    case: Case
    differences: list[str]
    bare: list[str] = dataclasses.field(default_factory=list)

    @property
    def unexpected(self) -> list[str]:
        """What the case's entry does not say; nothing when the outcome is the expected one."""
        if not self.case.reason:
            return self.differences
        if not self.differences:
            return [f"they are equal: take the reason away ({self.case.reason})"]
        return [each for each in self.differences if not re.fullmatch(self.case.difference, each)] + self.bare


def run_case(case: Case) -> Verdict:
    """Needs a daemon that clients find without being told."""
    with _as_without_tests():
        theirs = _outcome(DataLoader, case, num_workers=case.workers)
        for _ in range(RACES):
            if _lost_a_race(theirs):
                theirs = _outcome(DataLoader, case, num_workers=case.workers)
        ours = _outcome(PrefetchLoader, case, num_workers=case.workers, buffer=BUFFER)
        return Verdict(case, differences(theirs, ours), bare_errors(case, theirs, ours))


def bare_errors(case: Case, theirs: Any, ours: Any) -> list[str]:
    """The errors that a user has with our loader alone, and that do not say whose they are: neither by their type nor
    in the case's entry, whatever else of a pattern they match."""
    pairs = zip(theirs, ours) if type(theirs) is Separate and type(ours) is Separate else [(theirs, ours)]
    return [
        f"a bare {type(mine.error).__name__}, which DataLoader does not raise: {mine.error}"
        for their, mine in pairs
        if isinstance(mine, Raised)
        and not isinstance(their, Raised)
        and not isinstance(mine.error, PrefetchdError)
        and type(mine.error).__name__ not in case.difference
    ]


def _outcome(kind: Any, case: Case, **arguments: Any) -> Any:
    loading = case.make()
    try:
        loader = kind(**(arguments | loading.arguments))
    except Exception as error:
        return Raised(error)
    try:
        return loading.use(loader)
    except Exception as error:
        return Raised(error)
    finally:
        if isinstance(loader, PrefetchLoader):
            loader.close()


def _lost_a_race(theirs: Any) -> bool:
    """DataLoader's error when a worker dies just as it takes a descriptor from it, and before it sees the death."""
    return isinstance(theirs, Raised) and type(theirs.error) is ConnectionResetError


@contextlib.contextmanager
def _as_without_tests() -> Iterator[None]:
    with warnings.catch_warnings():
        # Warnings are errors in tests; DataLoader's about forks and missing accelerators are none of ours.
        warnings.simplefilter("ignore")
        yield
