"""SampleCache is a dataset whose samples are another one's, made once."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from prefetchd.wire.byte_sizes import format_bytes, parse_bytes
from prefetchd.wire.cache_directory import SAMPLES, CacheDescription, LeafFile
from prefetchd.wire.errors import CallerError, ProtocolError, RemoteError
from prefetchd.wire.sample_methods import goes_with_samples
from prefetchd_client.fingerprint.walk import fingerprint
from prefetchd_client.forking.fork_hooks import in_forks
from prefetchd_client.loader.stream_request import whole_number
from prefetchd_client.sample_cache.outcomes import BEYOND, BUSY, REFUSED, STORED, UNFIT
from prefetchd_client.sample_cache.own_randomness import OwnRandomness
from prefetchd_client.sample_cache.store import EXTRA, CacheStore, create_cache
from prefetchd_client.sample_cache.structure import (
    Structure,
    Unfit,
    dtype_name,
    structure_data,
    structure_from,
    structure_of,
)

ATTEMPTS = 8
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

GATHERED_BYTES = 16 << 10
"""Bytes of a sample up to which several are asked for at once faster than one by one."""

_living: weakref.WeakSet[SampleCache] = weakref.WeakSet()


class SampleCache(Dataset[Any]):
    """Keep the prepared samples of a dataset in memory-mapped files below a directory.

    Samples are stored when they are first asked for, by any process, or all at once by build(). Each is stored whole or
    not at all, whichever process dies, and all processes share what is stored. When nothing can be stored (a full
    disk), a warning says so, and samples are made each time. If the dataset draws random numbers, they depend on the
    sample's index alone. Samples that are returned are copies, never the cache's own memory.

    Args:
        dataset: A map-style dataset with nothing random in it: decoding, resizing, converting. Its samples are tensors,
            arrays and numbers, in tuples, lists, dicts and named tuples, all of the same types and shapes. Others are
            not stored, and made each time. Random transforms go after the cache.
        path: A directory, for caches of any datasets. Each version of a dataset, as its fingerprint tells them apart,
            has a directory of its own in it.
        limit: Most bytes that the samples take, as an int or as in "40GB". Default: no limit. Samples beyond it are
            made each time. It is fixed when the cache is made.
        trust: True also uses a cache that other users have made, or may write to. They decide what your samples are;
            they cannot run code. Default: False, such a cache raises UntrustedPathError.
        fingerprint_extra: Anything else that decides what the samples are, such as the version of data files.

    Raises:
        CallerError: The dataset has no length, an argument is wrong, or tensordict is needed and not installed.

    Example::

        prepared = SampleCache(ImageFolder(root, resize), "~/caches", limit="40GB")
        loader = PrefetchLoader(prepared, batch_size=64, shuffle=True, transform=augment)
    """

    deterministic = True

    def __init__(
        self,
        dataset: Any,
        path: str | os.PathLike[str],
        *,
        limit: str | int | None = None,
        fingerprint_extra: object = None,
        trust: bool = False,
    ) -> None:
        # Reads all that the dataset holds, for its fingerprint.
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise CallerError(f"{type(dataset).__name__} cannot be cached; allowed: a dataset with __len__")
        self.dataset = dataset
        self.path = Path(path).expanduser().absolute()
        if limit is not None:
            limit = parse_bytes(limit, "limit") if isinstance(limit, str) else whole_number("limit", limit)
        self.limit = limit
        self._extra = fingerprint_extra
        self.trust = trust
        self._begin(fingerprint(self.__prefetchd_fingerprint__()))
        # Who makes a cache needs it; one that is there is read without.
        if not self.directory.exists() and importlib.util.find_spec("tensordict") is None:
            raise CallerError(f"a sample cache is made by tensordict, which is not installed: {EXTRA}")

    def _begin(self, content: str) -> None:
        _living.add(self)
        self.fingerprint = content
        self._store: CacheStore | None = None
        self._structure: Structure | None = None
        self._is_off_in = 0
        self._warned_of: set[str] = set()
        # Of the process that decides which version this is: workers have what they were given.
        self._decided_in = os.getpid()
        self._content_once_used = ""
        self._randomness = OwnRandomness(self.dataset)

    @property
    def directory(self) -> Path:
        """The directory of this version's samples, once they are stored."""
        return self.path / self.fingerprint

    @property
    def samples(self) -> Path:
        """The directory that TensorDict.load_memmap reads."""
        return self.directory / SAMPLES

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Returns the sample, which is stored now if it was not. Raises what the dataset raises."""
        place = range(len(self))[index]
        store = self._opened()
        if store is not None and store.has(place):
            rows = store.read(place)
            if rows is None:
                self._tell_damage(store)
            else:
                # Without its classes: then it is told, and made.
                with contextlib.suppress(Unfit):
                    return self._structured(store, lambda: self._loaded(place)).make(rows)
        return self._made(place)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        store = self._opened() if goes_with_samples(type(self), "__getitems__") else None
        if store is None or store.description.sample_bytes > GATHERED_BYTES:
            return [self[index] for index in indices]
        places = [range(len(self))[index] for index in indices]
        targets = [torch.empty(len(places), *leaf.shape[1:], dtype=leaf.dtype) for leaf in store.leaves]
        missing = set(store.gather(places, targets))
        self._tell_damage(store)
        try:
            make = self._structured(store, lambda: self._loaded(places[0])).make
        except Unfit:
            return [self[index] for index in indices]
        rows = zip(*(target.unbind() for target in targets))
        return [self[place] if at in missing else make(list(row)) for at, (place, row) in enumerate(zip(places, rows))]

    def gather_into(self, indices: Sequence[int], targets: Sequence[torch.Tensor]) -> Sequence[int]:
        """Copies the samples' leaves, in the order in which default_collate meets them, to the rows of `targets`, one
        dense tensor a leaf. Returns the places of those that must be asked for one by one."""
        store = self._opened()
        if store is None or [(leaf.dtype, leaf.shape[1:]) for leaf in store.leaves] != [
            (target.dtype, target.shape[1:]) for target in targets
        ]:
            return range(len(indices))
        length = len(self)
        missing = store.gather([index + length if index < 0 else index for index in indices], targets)
        self._tell_damage(store)
        return missing

    # --- making it ---

    def build(self, *, workers: int = 0, progress: bool | None = None, socket: str | None = None) -> int:
        """Store all samples that are missing, with the daemon's workers, and return how many were stored.

        Samples that an earlier call stored stay, however that call ended.

        Args:
            workers: Most workers to use. Default: 0, all that the daemon has.
            progress: Whether to show a bar on stderr. Default: when stderr is a terminal.
            socket: The daemon's socket. Default: $PREFETCHD_SOCKET, else the user's own daemon.

        Raises:
            CallerError: Samples do not fit together.
            RemoteError: Samples cannot be stored.
        """
        from prefetchd_client.sample_cache.building import build

        return build(self, workers=workers, progress=progress, socket=socket)

    def stored(self) -> int:
        """Return how many samples are stored."""
        store = self._opened()
        return store.refresh() if store is not None else 0

    def missing(self) -> list[int]:
        """Return the indices of samples within the limit that are not stored yet."""
        store = self._opened()
        if store is None:
            return list(range(len(self)))
        store.refresh()
        return store.missing()

    def store(self, index: int) -> int:
        """Store one sample if it is missing.

        Returns STORED, BUSY (another process is storing it), UNFIT (it differs from the others), BEYOND (the limit) or
        REFUSED (nothing can be stored). Raises what the dataset raises.
        """
        index = range(len(self))[index]
        store = self._opened()
        if store is not None and store.has(index):
            return STORED
        if store is None:
            return self._made(index)[1]
        if index >= store.rows:
            return BEYOND
        with store.claimed(index) as claimed:
            if not claimed:
                return BUSY
            # Whoever had it until now may have stored it.
            return STORED if store.has(index) else self._made(index)[1]

    def refresh(self) -> None:
        """Look at the dataset again, after it was changed in place. Loaders do this when they hand it to workers.

        A change that the first sample made to the dataset, such as an opened file, makes no new version.
        """
        content = fingerprint(self.__prefetchd_fingerprint__())
        if content not in (self.fingerprint, self._content_once_used):
            self.close()
            self._begin(content)

    def close(self) -> None:
        """Close the files. They are opened again when they are needed."""
        if self._store is not None:
            self._store.close()
            self._store = None

    # --- inside ---

    def __prefetchd_fingerprint__(self) -> dict[str, Any]:
        return {"dataset": self.dataset, "extra": self._extra}

    def __reduce__(self) -> Any:
        self.refresh()
        return _restored, (
            type(self),
            self.dataset,
            str(self.path),
            self.limit,
            self._extra,
            self.fingerprint,
            self.trust,
        )

    def _opened(self) -> CacheStore | None:
        """Returns the store of this process, or None: there is none yet, or none can be had."""
        store = self._store
        if store is not None and store.pid == os.getpid():
            return store
        # Where it failed it is not tried again; a fork tries for itself.
        if self._is_off_in == os.getpid():
            return None
        try:
            store = CacheStore(self.directory, trust=self.trust)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._turn_off(f"{error.strerror}: {error.filename}")
            return None
        if store.description.length != len(self):
            store.close()
            raise ProtocolError(
                f"{self.directory} was made of {store.description.length} samples, and the dataset has {len(self)} by "
                "now without another fingerprint: tell its version with fingerprint_extra="
            )
        self._store, self._structure = store, None
        return store

    def _structured(self, store: CacheStore, sample: Callable[[], Any]) -> Structure:
        if self._structure is None:
            self._structure = structure_from(store.description.structure, store.description.leaves, sample)
        return self._structure

    def _loaded(self, index: int) -> Any:
        if self._randomness.dataset is not self.dataset:
            self._randomness = OwnRandomness(self.dataset)
        sample = self._randomness.load(index)
        if not self._content_once_used and self._decided_in == os.getpid():
            self._content_once_used = fingerprint(self.__prefetchd_fingerprint__())
        return sample

    def _made(self, index: int) -> tuple[Any, int]:
        """Returns the dataset's own sample, and what became of it."""
        sample = self._loaded(index)
        if self._is_off_in == os.getpid():
            return sample, REFUSED
        try:
            store = self._opened() or self._created(sample)
            if index >= store.rows:
                return sample, BEYOND
            structure = self._structured(store, lambda: sample)
            values = structure.take(sample)
            # As it will be read from now on: dense, whatever the strides that it was made with.
            sample = structure.make(values)
            if not store.writable:
                self._turn_off(f"{self.directory} cannot be written to")
                return sample, REFUSED
            return sample, STORED if store.write(index, values) else BUSY
        except Unfit as error:
            self._warn("unfit", f"sample {index} is not stored, and made each time: {error}")
            return sample, UNFIT
        except OSError as error:
            short = error.errno in NO_ROOM
            self._turn_off(f"{error.strerror}; {self._describe_room()}" if short else f"{error.strerror} ({self.path})")
            return sample, REFUSED

    def _created(self, sample: Any) -> CacheStore:
        found, _ = structure_of(sample)
        files = tuple(
            LeafFile(leaf.file, dtype_name(leaf.dtype), leaf.shape, leaf.dtype.itemsize * math.prod(leaf.shape))
            for leaf in found.leaves
        )
        sample_bytes = sum(file.row_bytes for file in files)
        rows = len(self) if self.limit is None else min(len(self), self.limit // sample_bytes)
        if rows < 1:
            raise CallerError(f"limit={self.limit}; allowed: at least one sample's {sample_bytes} bytes")
        name = f"{type(self.dataset).__module__}.{type(self.dataset).__qualname__}"
        description = CacheDescription(self.fingerprint, name, len(self), rows, files, structure_data(found))
        for _ in range(ATTEMPTS):
            try:
                create_cache(self.directory, description, [leaf.path for leaf in found.leaves], trust=self.trust)
            except FileNotFoundError:
                # Another process has tidied up just then.
                continue
            store = self._opened()
            if store is not None:
                return store
        raise RemoteError(f"{self.directory} is removed as often as it is made")

    def _describe_room(self) -> str:
        store = self._store
        if store is None:
            return f"{self.path} has no room"
        whole = store.rows * store.description.sample_bytes
        return f"all {store.rows} samples take {format_bytes(whole)} in {self.path}: make room there, or set limit="

    def _turn_off(self, why: str) -> None:
        self._is_off_in = os.getpid()
        self._warn("off", f"nothing more is stored, and what is missing is made each time: {why}")

    def _tell_damage(self, store: CacheStore) -> None:
        if store.damaged:
            rows = ", ".join(map(str, sorted(store.damaged)[:10]))
            self._warn(
                "damage",
                f"samples are not what was stored, and are made anew: {rows}. The disk, or somebody who may write "
                f"there, has changed them; look at all: prefetchd cache verify --fix {self.path} {self.fingerprint}",
            )

    def _warn(self, of: str, text: str) -> None:
        if of not in self._warned_of:
            self._warned_of.add(of)
            warnings.warn(f"sample cache: {text}", RuntimeWarning, stacklevel=2)


@in_forks
def _refresh_all() -> None:
    """Refreshes all caches of this process, as a loader does when it hands its dataset over."""
    for cache in list(_living):
        cache.refresh()


def _restored(
    kind: type[SampleCache], dataset: Any, path: str, limit: Any, extra: object, content: str, trust: bool
) -> SampleCache:
    cache = kind.__new__(kind)
    cache.dataset, cache.path, cache.limit, cache._extra, cache.trust = dataset, Path(path), limit, extra, trust
    cache._begin(content)
    cache._decided_in = 0
    return cache
