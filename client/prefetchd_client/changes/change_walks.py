"""ChangeWatch walks over a loader's parts in two ways: WatchingWalk looks at everything, GlancingWalk is quick enough
for each epoch."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from prefetchd_client.changes.container_memory import Elements, elements_of
from prefetchd_client.fingerprint.array_digest import content_digest, memory_block
from prefetchd_client.fingerprint.live_state import FileStamp, check_for
from prefetchd_client.fingerprint.module_sources import Origin, UserSource, module_origin
from prefetchd_client.fingerprint.walk import Digest, Walk

_LARGE = 1024
_SAMPLED = 64
"""Elements of a large list that are looked at to tell what the others are."""
_CONTAINERS = frozenset([list, tuple, dict])
_UNCHANGING = frozenset([int, float, complex, str, bytes, bool, type(None), pathlib.PosixPath, pathlib.PurePosixPath])
_MOST_AT_ONCE = 15_000
"""Objects that are looked at where a fork looks at all: that takes some 30 milliseconds."""
SMALL_BYTES = 64 << 10
"""An array that takes no more is looked at each time."""


class TooMuch(Exception):  # noqa: N818 - it is none
    """There is more to look at than a quick walk may."""


@dataclasses.dataclass
class Known:
    """Remembers a large container, and the digest of what it holds; the digest is empty until it is known. `elements`
    says where a list or dict keeps its elements, and `copy` is what it held, where only a copy can tell. It
    `is_lasting` when its elements cannot change, so that it is what it was as long as these are the same."""

    value: object
    digest: bytes = b""
    elements: Elements | None = None
    copy: Any = None
    is_lasting: bool = False


Large: TypeAlias = dict[int, Known]
"""By id."""


@dataclasses.dataclass(frozen=True)
class SeenArray:
    """Remembers an array that a walk met. `content` is the digest of a small array, else empty: a small one that is
    made anew for each walk is not a changed one for that."""

    reference: weakref.ref[Any]
    identity: int
    content: bytes


@dataclasses.dataclass(frozen=True)
class Seen:
    """Holds what a walk found: the digests of the parts, the arrays in them, the digests of the files of the user's
    modules that they come from, the names of live state in them, and the stamps of the data files that they have
    open. `surroundings` is the working directory and the environment."""

    digests: dict[str, str]
    arrays: list[SeenArray]
    files: list[str]
    live: tuple[str, ...] = ()
    stamps: dict[str | int, FileStamp] = dataclasses.field(default_factory=dict)
    surroundings: tuple[object, ...] = ()

    def as_compared(self) -> list[Any]:
        """Returns the form in which a process and its fork are compared: both know objects by the same ids."""
        arrays = [0 if each.content else each.identity for each in self.arrays]
        stamps = [[file, *stamp] for file, stamp in self.stamps.items()]
        return [self.digests, arrays, self.files, stamps]


def are_same(before: Seen, after: Seen) -> bool:
    """Return True when two looks have found the same. Live state does not count: it may differ at any time."""
    if (before.digests, before.files) != (after.digests, after.files) or len(before.arrays) != len(after.arrays):
        return False
    if (before.stamps, before.surroundings) != (after.stamps, after.surroundings):
        return False
    return all(map(_is_same_array, before.arrays, after.arrays))


def _is_same_array(before: SeenArray, after: SeenArray) -> bool:
    if before.content or after.content:
        return before.content == after.content
    former = before.reference()
    return former is not None and former is after.reference()


class _ArrayWalk(Walk):
    """Walks as the fingerprint does, but takes arrays by identity and the user's modules by their files."""

    def __init__(
        self,
        masked: frozenset[int],
        former: Large,
        large: Large,
        arrays: list[SeenArray],
        sources: set[UserSource],
        is_untouched: Callable[[Known], bool],
    ) -> None:
        super().__init__({}, masked)
        self._sources = sources
        self._former = former
        self._large = large
        self._arrays = arrays
        self._is_untouched = is_untouched

    def _take_small(self, value: Sequence[object] | dict[object, object], kind: type) -> None:
        rows: Sequence[object] = [*value, *value.values()] if isinstance(value, dict) else value
        if _CONTAINERS.isdisjoint(map(type, rows)):
            super().take_container(value, kind)
        elif not self.is_known(value):
            # Each by itself: whether all of it is plain would be asked of every element of a large one.
            self.content.update(b"%b:%d;" % (kind.__name__.encode(), len(rows)))
            self.stack.extend(reversed(rows))

    def take_object(self, value: object, kind: type) -> None:
        if isinstance(value, UserSource):
            # What it imports takes a search of all module paths; which files that leads to is found out once.
            self._sources.add(value)
            self.content.update(f"source {value.name};".encode())
            return
        if issubclass(kind, types.ModuleType):
            # By who it is: its package's version, which it takes long to find out, stays while this process lives.
            self._take_module(cast(types.ModuleType, value))
            return
        if not issubclass(kind, (np.ndarray, torch.Tensor)):
            super().take_object(value, kind)
            return
        check = check_for(kind)
        if check is not None and self.live is not None and self.live.is_live(check, value):
            self.content.update(b"live;")
            return
        # Now: one that was made for this look alone is gone after it.
        block = memory_block(value)
        small = block is not None and block[1] <= SMALL_BYTES
        content = content_digest(value) if small else None
        self._arrays.append(SeenArray(weakref.ref(value), id(value), content or b""))
        version = 0
        if not small and isinstance(value, torch.Tensor) and not value.is_inference():
            version = value._version
        self.content.update(b"array %d;" % version)

    def _take_module(self, module: types.ModuleType) -> None:
        if module_origin(module) is Origin.INSTALLED:
            self.content.update(f"package {module.__name__} {id(module)};".encode())
        else:
            super().take_object(module, type(module))


class WatchingWalk(_ArrayWalk):
    """Walks over everything. The digest of a large container whose elements cannot change is taken again only when it
    is not what it was in the last walk: that its elements are the same, or equal to those of a copy if such a walk
    `keeps` them, costs a hundredth of that or less."""

    def __init__(self, *arguments: Any, keeps: bool) -> None:
        super().__init__(*arguments)
        self._keeps = keeps

    def take_container(self, value: Sequence[object] | dict[object, object], kind: type) -> None:
        if len(value) < _LARGE:
            self._take_small(value, kind)
            return
        known = self._former.get(id(value))
        if known is None or not self._is_as_it_was(known, value):
            if not _cannot_change(value):
                super().take_container(value, kind)
                return
            content, self.content = self.content, Digest()
            super().take_container(value, kind)
            content, self.content = self.content, content
            known = self._remembered(value, content.digest())
        # Kept alive, so that no other container is taken for it in the next walk.
        self._large[id(value)] = known
        self.content.update(b"large " + known.digest)

    def _is_as_it_was(self, known: Known, value: object) -> bool:
        if known.value is not value or not known.digest:
            return False
        return known.copy == value if known.copy is not None else self._is_untouched(known)

    def _remembered(self, value: Sequence[object] | dict[object, object], digest: bytes) -> Known:
        if isinstance(value, tuple):
            return Known(value, digest, is_lasting=True)
        elements = elements_of(value)
        if self._keeps or elements is None:
            return Known(value, digest, copy=value.copy())  # type: ignore[union-attr]
        return Known(value, digest, elements, is_lasting=True)


class GlancingWalk(_ArrayWalk):
    """Walks over what can be looked at quickly. It does not look into large containers: for those whose elements seem
    not to change the kernel tells whether their memory was written to, and the walk `is_deep` where there are others.
    Raises TooMuch."""

    is_deep = False
    _left = _MOST_AT_ONCE

    def _count(self, objects: int) -> None:
        self._left -= objects
        if self._left < 0:
            raise TooMuch

    def take_container(self, value: Sequence[object] | dict[object, object], kind: type) -> None:
        if len(value) < _LARGE or (len(value) <= _MOST_AT_ONCE and not _seems_lasting(value)):
            self._count(1 + len(value) // 10)
            self._take_small(value, kind)
            return
        self._count(1)
        known = self._former.get(id(value))
        if known is None or known.value is not value:
            known = Known(value, elements=elements_of(value), is_lasting=_seems_lasting(value))
        self._large[id(value)] = known
        self.is_deep |= not (known.is_lasting and self._is_untouched(known))
        self.content.update(b"large %d %d;" % (id(value), len(value)))

    def take_object(self, value: object, kind: type) -> None:
        self._count(1)
        super().take_object(value, kind)


def _seems_lasting(value: Sequence[object] | dict[object, object]) -> bool:
    """Returns True when a few elements are of kinds that cannot change: from all over a list, from a dict's begin and
    end."""
    if not isinstance(value, dict):
        return _cannot_change(value[:: max(1, len(value) // _SAMPLED)])
    few = (itertools.islice(each, _SAMPLED) for each in (value.items(), reversed(value.items())))
    return _cannot_change(list(itertools.chain(*few)))


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
