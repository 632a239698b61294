"""CacheStore is one cache's directory in one process: rows read through shared mappings, written beside them, marked
when whole.

Rows are written with pwrite: a full disk is an error then, and not a signal. A process that dies leaves a row without
its mark, which is written again; and the locks that it held are free.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prefetchd.processes import damage_found
from prefetchd.wire.cache_directory import (
    DESCRIPTION,
    MAKER_LOCK_OFFSET,
    MARK,
    MARKS,
    ROW_LOCK_OFFSET,
    SAMPLES,
    CacheDescription,
    LeafFile,
    check_sizes,
    encode_description,
    read_description_at,
    row_digest,
)
from prefetchd.wire.cache_marks import is_damage_noted, marks_locked, note_damage
from prefetchd.wire.cache_removal import remove_leftovers, unused_name
from prefetchd.wire.errors import CallerError, ProtocolError, UntrustedPathError
from prefetchd.wire.file_locks import try_lock, unlock
from prefetchd.wire.trusted_paths import OTHERS_WRITE, is_ours_alone, open_below, open_directory
from prefetchd_client.sample_cache.structure import check_structure

EXTRA = "pip install tensordict"
CHECKED_EVERY = 64
"""The number of rows read of which one is compared with its digest."""
LARGE_ROW_BYTES = 8192
"""Bytes of a row from which on rows are copied one by one: what that costs beside the copy is less than what
index_select does."""


class CacheStore:
    """Reads and writes the rows of one cache. For one process: whoever forks makes another. `leaves` are tensors over
    the files, to be read only."""

    def __init__(self, directory: Path, *, trust: bool = False) -> None:
        """Opens the cache; with `trust`, also one that others have made, or may write to. Raises FileNotFoundError when
        there is no such cache, ProtocolError when it is damaged, UntrustedPathError when it is not ours alone,
        OSError."""
        self.directory = directory
        self.pid = os.getpid()
        self._trust = trust
        self._fds: list[int] = []
        self._finalizer = weakref.finalize(self, _close_all, self._fds)
        self._finalizer.atexit = False
        inside = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # First of all: what it says is believed only then.
            self._check_owner(inside, directory)
            self.description = read_description_at(inside, directory)
            check_structure(self.description.structure, self.description.leaves)
            check_sizes(directory, self.description)
            self._marks_fd, self.writable = self._open(inside, MARKS, MARK.size)
            self.leaves = [self._mapped(inside, leaf) for leaf in self.description.leaves]
        except BaseException:
            self.close()
            raise
        finally:
            os.close(inside)
        rows = self.description.rows
        self._sizes = [(MARKS, MARK.size * rows)]
        self._sizes += [(f"{SAMPLES}/{leaf.file}", leaf.row_bytes * rows) for leaf in self.description.leaves]
        self._until_check = 0
        self.checks_all = False
        """True once any process has found a damaged row here: from then on each row is compared, repaired or not."""
        self.damaged: set[int] = set()
        """Rows that were not what their marks say, when they were read."""
        self._marks = np.zeros(self.description.rows, np.uint64)
        self.refresh()

    @property
    def rows(self) -> int:
        return self.description.rows

    def close(self) -> None:
        """Closes the files; whoever still has one of `leaves` keeps its mapping. Idempotent."""
        self.leaves = []
        self._finalizer()

    # --- reading ---

    def refresh(self) -> int:
        """Reads all marks, and returns how many rows there are."""
        with marks_locked(self._marks_fd, shared=True) as locked:
            if locked:
                data = os.pread(self._marks_fd, MARK.size * self.rows, 0)
                # A mark that somebody has cut off is none.
                self._marks = np.frombuffer(data.ljust(MARK.size * self.rows, b"\0"), np.uint64).copy()
        return int(np.count_nonzero(self._marks))

    def missing(self) -> list[int]:
        """Returns the rows without a mark, as of the last refresh()."""
        found: list[int] = np.flatnonzero(self._marks == 0).tolist()
        return found

    def has(self, row: int) -> bool:
        """Returns True when the row is whole; asks the file when it was not, last time. A row whose mark cannot be read
        is missing, and made again."""
        if not 0 <= row < self.rows or row in self.damaged:
            return False
        if not self._marks[row]:
            with marks_locked(self._marks_fd, shared=True) as locked:
                if locked:
                    self._marks[row] = self._mark(row)
        return bool(self._marks[row])

    def read(self, row: int) -> list[torch.Tensor] | None:
        """Returns a copy of each leaf's row, which has() has found whole; None when it is not what its mark says.
        Raises ProtocolError when somebody has cut a file."""
        self._check_whole()
        copies = [leaf[row].clone() for leaf in self.leaves]
        is_due = bool(self._due([0]))
        return None if is_due and self._damaged_of([0], [row], [copy[None] for copy in copies]) else copies

    def gather(self, rows: Sequence[int], targets: Sequence[torch.Tensor]) -> list[int]:
        """Copies each row to its place in `targets`, dense tensors of len(rows) rows, one a leaf. Returns the places of
        those that are not there. Raises ProtocolError when somebody has cut a file."""
        self._check_whole()
        wanted = np.fromiter(rows, np.int64, len(rows))
        is_row = (wanted >= 0) & (wanted < self.rows)
        known = is_row & (self._marks[np.where(is_row, wanted, 0)] != 0)
        # Python's own ints: those of numpy are no addresses for memmove.
        sources = wanted.tolist()
        missing = [place for place in np.flatnonzero(~known).tolist() if not self.has(sources[place])]
        places = sorted(set(range(len(rows))) - set(missing))
        for leaf, target, described in zip(self.leaves, targets, self.description.leaves, strict=True):
            size = described.row_bytes
            if size >= LARGE_ROW_BYTES or missing:
                into, source = target.data_ptr(), leaf.data_ptr()
                for place in places:
                    ctypes.memmove(into + place * size, source + sources[place] * size, size)
            else:
                torch.index_select(leaf, 0, torch.from_numpy(wanted), out=target)
        bad = self._damaged_of(self._due(places), sources, targets)
        if bad:
            bad = self._damaged_of(places, sources, targets)
        return sorted({*missing, *bad})

    def _due(self, places: list[int]) -> list[int]:
        """Returns which of the rows that were read now are compared with their marks: the first one of all, and one in
        CHECKED_EVERY from there on; each since one was damaged."""
        if self.checks_all:
            return places
        due = places[self._until_check :: CHECKED_EVERY]
        self._until_check += CHECKED_EVERY * len(due) - len(places)
        return due

    def _damaged_of(self, places: list[int], rows: Sequence[int], copies: Sequence[torch.Tensor]) -> list[int]:
        """Returns those of `places` whose rows in `copies` are not what their marks say: they are missing from now
        on."""
        found = [
            place
            for place in places
            if row_digest(_bytes_of(copy[place]) for copy in copies) != int(self._marks[rows[place]])
        ]
        self.damaged.update(rows[place] for place in found)
        if found:
            note_damage(self._marks_fd, self.rows)
            self._check_all_from_now()
        return found

    def _check_all_from_now(self) -> None:
        self.checks_all = True
        damage_found.note()

    # --- writing ---

    @contextlib.contextmanager
    def claimed(self, row: int) -> Iterator[bool]:
        """Keeps the row for this process while the block runs, so that nobody else makes it for the cache meanwhile.
        Gives False when another process has it. Where nothing can be written nothing is kept."""
        if not self.writable:
            yield True
            return
        locked = try_lock(self._marks_fd, ROW_LOCK_OFFSET + row)
        try:
            yield locked
        finally:
            if locked:
                unlock(self._marks_fd, ROW_LOCK_OFFSET + row)

    def write(self, row: int, values: Sequence[torch.Tensor]) -> bool:
        """Writes the row and marks it, unless it is there. Returns False when another process is at it. Raises
        OSError, and ProtocolError when somebody has cut a file: to write behind the cut would make rows of zeros."""
        self._check_whole()
        if not try_lock(self._marks_fd, ROW_LOCK_OFFSET + row):
            return False
        try:
            if self._mark(row) and row not in self.damaged:
                return True
            if row in self.damaged:
                # Whoever reads it meanwhile must not take half of the new one for a whole one.
                with marks_locked(self._marks_fd) as locked:
                    if not locked:
                        return False
                    os.pwrite(self._marks_fd, MARK.pack(0), MARK.size * row)
            parts = [_bytes_of(value) for value in values]
            for fd, part in zip(self._leaf_fds, parts):
                _write_all(fd, part, row * part.nbytes)
            digest = row_digest(iter(parts))
            with marks_locked(self._marks_fd) as locked:
                if not locked:
                    return False
                os.pwrite(self._marks_fd, MARK.pack(digest), MARK.size * row)
                self._marks[row] = digest
                self.damaged.discard(row)
            return True
        finally:
            unlock(self._marks_fd, ROW_LOCK_OFFSET + row)

    # --- inside ---

    def _mark(self, row: int) -> int:
        found = os.pread(self._marks_fd, MARK.size, MARK.size * row)
        return int(MARK.unpack(found.ljust(MARK.size, b"\0"))[0])

    def _check_whole(self) -> None:
        """Raises ProtocolError when a file has become shorter: to touch the end of a mapping would end us (decision
        0102)."""
        sizes = [os.fstat(fd).st_size for fd in self._fds]
        for found, (name, size) in zip(sizes, self._sizes):
            if found < size:
                raise ProtocolError(self._cut(self.directory / name))
        # The marks are the first file.
        if not self.checks_all and is_damage_noted(sizes[0], self.rows):
            self._check_all_from_now()

    def _cut(self, path: Path) -> str:
        return f"{path} is shorter than its {self.rows} rows: somebody has cut it"

    @property
    def _leaf_fds(self) -> list[int]:
        return self._fds[1:]

    def _check_owner(self, fd: int, path: Path) -> None:
        found = os.fstat(fd)
        if not self._trust and not is_ours_alone(found):
            raise UntrustedPathError(
                f"{path} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; allowed: a cache of "
                f"uid {os.geteuid()} that nobody else may write to. Whoever may write to a cache decides what your "
                "samples are: if you trust them all, say SampleCache(..., trust=True)"
            )

    def _open(self, inside: int, name: str, row_bytes: int) -> tuple[int, bool]:
        # A cache that may only be read is used, too: another user's, or one on a file system that is mounted read-only.
        path, writable = self.directory / name, True
        try:
            try:
                fd = open_below(inside, name, os.O_RDWR)
            except PermissionError:
                fd, writable = open_below(inside, name, os.O_RDONLY), False
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                fd, writable = open_below(inside, name, os.O_RDONLY), False
        except UntrustedPathError as error:
            raise ProtocolError(f"{path}: {error}") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise ProtocolError(f"{path} leads elsewhere: it is, or goes through, a symbolic link") from None
            raise
        self._fds.append(fd)
        self._check_owner(fd, path)
        if os.fstat(fd).st_size < row_bytes * self.rows:
            raise ProtocolError(self._cut(path))
        return fd, writable

    def _mapped(self, inside: int, leaf: LeafFile) -> torch.Tensor:
        fd, writable = self._open(inside, f"{SAMPLES}/{leaf.file}", leaf.row_bytes)
        dtype, shape = leaf.dtype, leaf.shape
        self.writable = self.writable and writable
        mapping = mmap.mmap(fd, leaf.row_bytes * self.rows, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        # torch warns of memory that is read only; nobody gets this tensor, only copies of its rows.
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        memory = (ctypes.c_ubyte * len(mapping)).from_address(address)
        # The tensor has the memory, and this has its mapping.
        memory.mapping = mapping  # type: ignore[attr-defined]
        kind: torch.dtype = getattr(torch, dtype)
        count = self.rows * int(np.prod(shape, dtype=np.int64))
        return torch.frombuffer(memory, dtype=kind, count=count).view(self.rows, *shape)


def create_cache(
    directory: Path, description: CacheDescription, paths: Sequence[tuple[str, ...]], *, trust: bool = False
) -> None:
    """Makes an empty cache, unless another process is the first; `paths` has each leaf's keys. tensordict itself makes
    its directory. Raises CallerError without tensordict, or when others could put something in the place of what is
    made and `trust` does not say that they may, FileNotFoundError when another process has tidied up just then,
    OSError."""
    try:
        from tensordict import TensorDict
    except ImportError:
        raise CallerError(f"a sample cache is made by tensordict, which is not installed: {EXTRA}") from None
    directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not trust:
        knob = "Choose another directory for the cache, or say SampleCache(..., trust=True) if you trust them all"
        os.close(open_directory(directory.parent, knob, sticky=True, own_group=True))
    remove_leftovers(directory.parent)
    unfinished = unused_name(directory, "new")
    unfinished.mkdir()
    try:
        fd = os.open(unfinished / MARKS, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        # Whoever tidies up opens it to see whether it is locked.
        raise FileNotFoundError(f"{unfinished} is being tidied up") from None
    try:
        if not (try_lock(fd, MAKER_LOCK_OFFSET) and unfinished.exists()):
            raise FileNotFoundError(f"{unfinished} has been tidied up")
        os.ftruncate(fd, MARK.size * description.rows)
        nested: dict[str, Any] = {}
        for path, leaf in zip(paths, description.leaves):
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            empty = torch.zeros((), dtype=getattr(torch, leaf.dtype))
            inner[path[-1]] = empty.expand(description.rows, *leaf.shape)
        # Of an expanded tensor only the size is taken: the files are holes until rows are written.
        TensorDict(nested, batch_size=[description.rows]).memmap_like(str(unfinished / SAMPLES))
        (unfinished / DESCRIPTION).write_text(encode_description(description), "utf-8")
        check_sizes(unfinished, description)
        _keep_others_from_writing(unfinished)
        try:
            unfinished.rename(directory)
        except OSError as error:
            # Another process has been faster.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    except ProtocolError as error:
        raise CallerError(f"tensordict has laid out {unfinished} otherwise than was asked: {error}") from None
    finally:
        os.close(fd)
        if unfinished.exists():
            remove_leftovers(directory.parent)


def _keep_others_from_writing(directory: Path) -> None:
    """Takes the right to write from all others, whatever the umask: else the cache would not be its maker's alone."""
    for above, _, names in os.walk(directory):
        for path in (Path(above), *(Path(above, name) for name in names)):
            path.chmod(path.stat().st_mode & ~OTHERS_WRITE)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _bytes_of(value: torch.Tensor) -> memoryview:
    content: Any = value.reshape(-1).view(torch.uint8).numpy()
    return memoryview(content)


def _write_all(fd: int, part: memoryview, offset: int) -> None:
    while part:
        written = os.pwrite(fd, part, offset)
        part, offset = part[written:], offset + written
