"""What the user has changed between two epochs: the dataset's attributes, the sampler, the collate function.

Looked at when an iterator begins. An array or tensor counts as changed when another stands in its place, or when torch
has counted a write into it; what numpy writes into an array cannot be seen (PrefetchLoader.refresh). What a fingerprint
cannot see, this cannot either.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from prefetchd_client.assumptions import Assumptions
from prefetchd_client.fingerprint import Digest, Walk
from prefetchd_client.module_sources import UserSource, file_digests, source_files

_LARGE = 1024
_Large: TypeAlias = dict[int, tuple[Any, Any, bytes]]
"""Of large containers, by id: the container, a copy, and the digest of what they hold."""
_Seen: TypeAlias = tuple[dict[str, str], list[weakref.ref[Any]], list[str]]
"""Digests of the parts, the arrays in them, and the digests of the files of the user's modules that they come from."""
_CONTAINERS = frozenset([list, tuple, dict])
_UNCHANGING = frozenset([int, float, complex, str, bytes, bool, type(None)])


class ChangeWatch:
    """Remembers `parts`; of `masked` objects only that they are there, and what set_epoch() does to a sampler not at
    all: whether an epoch was planned from these is asked apart (assumptions)."""

    def __init__(
        self, parts: Mapping[str, object], masked: Iterable[object] = (), assumptions: Assumptions | None = None
    ) -> None:
        self._parts = parts
        self._masked = frozenset(map(id, masked))
        self._assumptions = assumptions
        self._large: _Large = {}
        self._files: tuple[frozenset[UserSource], list[str]] = (frozenset(), [])
        self._seen = self._look()

    def has_changed(self) -> bool:
        """Since it was asked last. Takes time in proportion to what the parts hold, arrays left aside: a million
        strings take some milliseconds."""
        before, after = self._seen, self._look()
        self._seen = after
        if before[2] != after[2]:
            # They may import others now.
            self._files = (self._files[0], source_files(self._files[0]))
            self._seen = (*after[:2], file_digests(self._files[1]))
        return not _are_same(before, after)

    def _look(self) -> _Seen:
        arrays: list[weakref.ref[Any]] = []
        large: _Large = {}
        sources: set[UserSource] = set()
        at_epoch_zero = self._assumptions.at_epoch_zero() if self._assumptions is not None else contextlib.nullcontext()
        with warnings.catch_warnings(), at_epoch_zero:
            warnings.simplefilter("ignore")
            digests = {
                name: _WatchingWalk(self._masked, self._large, large, arrays, sources).digest(value)
                for name, value in self._parts.items()
            }
            if sources != self._files[0]:
                self._files = (frozenset(sources), source_files(sources))
        self._large = large
        return digests, arrays, file_digests(self._files[1])


def _are_same(before: _Seen, after: _Seen) -> bool:
    if (before[0], before[2]) != (after[0], after[2]):
        return False
    pairs = itertools.zip_longest(before[1], after[1])
    return all(one is not None and two is not None and one() is two() for one, two in pairs)


class _WatchingWalk(Walk):
    """Arrays by who they are, the user's modules by their files. The digest of a large container whose elements cannot
    change is taken again only when it is not what it was in the last walk: comparing it with a copy costs a hundredth
    of that."""

    def __init__(
        self,
        masked: frozenset[int],
        former: _Large,
        large: _Large,
        arrays: list[weakref.ref[Any]],
        sources: set[UserSource],
    ) -> None:
        super().__init__({}, masked)
        self._sources = sources
        self._former = former
        self._large = large
        self._arrays = arrays

    def take_container(self, value: Sequence[object] | dict[object, object], kind: type) -> None:
        if len(value) < _LARGE:
            rows: Sequence[object] = [*value, *value.values()] if isinstance(value, dict) else value
            if _CONTAINERS.isdisjoint(map(type, rows)):
                super().take_container(value, kind)
            elif not self.is_known(value):
                # Each by itself: whether all of it is plain would be asked of every element of a large one.
                self.content.update(b"%b:%d;" % (kind.__name__.encode(), len(rows)))
                self.stack.extend(reversed(rows))
            return
        known = self._former.get(id(value))
        if known is None or known[0] is not value or known[1] != value:
            if not _cannot_change(value):
                super().take_container(value, kind)
                return
            content, self.content = self.content, Digest()
            super().take_container(value, kind)
            content, self.content = self.content, content
            known = (value, value if kind is tuple else value.copy(), content.digest())  # type: ignore[union-attr]
        # Kept alive, so that no other container is taken for it in the next walk.
        self._large[id(value)] = known
        self.content.update(b"large " + known[2])

    def take_object(self, value: object, kind: type) -> None:
        if isinstance(value, UserSource):
            # What it imports takes a search of all module paths; which files that leads to is found out once.
            self._sources.add(value)
            self.content.update(f"source {value.name};".encode())
            return
        if not issubclass(kind, (np.ndarray, torch.Tensor)):
            super().take_object(value, kind)
            return
        self._arrays.append(weakref.ref(value))
        version = 0
        if isinstance(value, torch.Tensor) and not value.is_inference():
            version = value._version
        self.content.update(b"array %d;" % version)


def _cannot_change(value: Sequence[object] | dict[object, object]) -> bool:
    elements = [*value, *value.values()] if isinstance(value, dict) else value
    kinds = set(map(type, elements))
    if kinds <= _UNCHANGING:
        return True
    if not kinds <= _UNCHANGING | {tuple}:
        return False
    return (
        set(map(type, itertools.chain.from_iterable(each for each in elements if type(each) is tuple))) <= _UNCHANGING
    )
