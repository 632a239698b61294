"""Holds a configuration against the machine: whether what it declares can be served here. Every problem names the knob,
and the line it stands on.

The checks, in the order in which they are made for each stream:

1. Interpreter and directory are there (`python`, `cwd`).
2. The store's directory is there, ours, writable and no other daemon's; one that is not in memory is worth a note, and
   so is a progress file's that is not there.
3. A buffer that is given in bytes fits what the store has left, beside the streams before it.
4. The dataset can be made and gives a batch, in a process as the daemon's (dataset_look.py). Left out on demand.
5. A ring of such batches fits, as the daemon would reckon it; and the watermarks lie within it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prefetchd import __version__
from prefetchd.cli.checks.mounts import IN_MEMORY, type_of
from prefetchd.cli.dataset_look import Look
from prefetchd.daemon.config.daemon_config import Config, StreamConfig
from prefetchd.daemon.config.toml_lines import line_numbers, line_of
from prefetchd.daemon.declared.declared_stream import spec_of
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.segments.planned_ring import planned_ring
from prefetchd.ring.batch_files import BatchFiles
from prefetchd.ring.capacity import Room, measured_slot_bytes, ring_bytes
from prefetchd.ring.file_ring import file_bytes
from prefetchd.ring.memory_limits import cgroup_headroom_bytes, free_bytes
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.errors import BufferTooSmallError, CallerError, NoSpaceError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import SHARED_MEMORY, runtime_paths

PROBLEM, NOTE, UNKNOWN = "problem", "note", "unknown"


@dataclasses.dataclass(frozen=True)
class Remark:
    """Something about a stream's `key`, with its place in the text: a PROBLEM, for which the stream cannot be served; a
    NOTE; or what is UNKNOWN, as it took too long. `details` are lines of what the user's code said."""

    kind: str
    key: str
    text: str
    details: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Ring:
    """The ring that a stream would have: `slots` batches of `batch_bytes`."""

    slots: int
    batch_bytes: int


class ConfigCheck:
    """Checks the streams of one file, one after the other: each takes room from those after it."""

    def __init__(
        self, file: Path, config: Config, timeout_s: float, look: Callable[[StreamConfig, str, float], Look] | None
    ) -> None:
        """`look` is None when none of the user's code is to run; each look takes `timeout_s` at most."""
        self._file = file
        self._directory = os.path.dirname(os.path.abspath(file))
        self._lines = line_numbers(file.read_text("utf-8"))
        self._look = look
        self._timeout_s = timeout_s
        self._rooms = _Rooms(config.daemon.memory_bytes)
        self._own_daemon = LockFile(runtime_paths().lock).holder()
        self.ring: Ring | None = None
        """The ring of the stream that was checked last, if it is known."""

    def remarks(self, stream: StreamConfig) -> Iterator[Remark]:
        """Yields what is to be said of the stream, as it is found."""
        self.ring = None
        wrong: set[str] = set()
        for remark in [*self._interpreter(stream), *self._store(stream), *self._progress(stream)]:
            wrong |= {remark.key} if remark.kind == PROBLEM else set()
            yield remark
        if self._look is None or wrong & {"python", "cwd"}:
            # Its process could not begin without these, which has been said.
            return
        look = self._look(stream, self._directory, self._timeout_s)
        if look.software and look.software != __version__:
            text = f"has prefetchd {look.software}, and this is {__version__}: install one version in both"
            yield self._remark(NOTE, stream, "python", text)
        if look.is_late:
            text = f"not made within {self._timeout_s:g} s ({look.failure}): give it longer with --timeout"
            yield self._remark(UNKNOWN, stream, "dataset", text, look.output)
        elif look.spec is None:
            key = "python" if look.cannot_start else "dataset"
            yield self._remark(PROBLEM, stream, key, look.failure, look.output)
        elif "store" not in wrong:
            yield from self._ring(stream, look, is_too_large="buffer" in wrong)

    def _remark(self, kind: str, stream: StreamConfig, key: str, text: str, details: tuple[str, ...] = ()) -> Remark:
        path = ("streams", stream.name, key)
        return Remark(kind, key, f"{self._file}:{line_of(path, self._lines)}: {'.'.join(path)}: {text}", details)

    def _interpreter(self, stream: StreamConfig) -> Iterator[Remark]:
        if stream.python and not (os.path.isfile(stream.python) and os.access(stream.python, os.X_OK)):
            yield self._remark(PROBLEM, stream, "python", f"{stream.python} is no program that can be run")
        if stream.cwd and not os.path.isdir(stream.cwd):
            yield self._remark(PROBLEM, stream, "cwd", f"{stream.cwd} is no directory")

    def _progress(self, stream: StreamConfig) -> Iterator[Remark]:
        directory = os.path.dirname(stream.progress_file)
        if stream.progress_file and not os.path.isdir(directory):
            text = f"{directory} is not there: until it is, nobody can say in {stream.progress_file} where it stands"
            yield self._remark(NOTE, stream, "progress", text)

    def _store(self, stream: StreamConfig) -> Iterator[Remark]:
        directory = stream.directory or SHARED_MEMORY
        mount = f"mount -t tmpfs -o size=N,mode=0700,uid={os.geteuid()} tmpfs {directory}"
        if not os.path.isdir(directory):
            is_there = os.path.lexists(directory)
            why = "is no directory" if is_there else "is not there"
            made = "" if is_there else f": mkdir -p {directory}; {mount}"
            yield self._remark(PROBLEM, stream, "store", f"{directory} {why}{made}")
            return
        if stream.store == FILES:
            try:
                BatchFiles(directory).check()
                holder = BatchFiles(directory).holder()
            except CallerError as error:
                yield self._remark(PROBLEM, stream, "store", str(error))
                return
            # The daemon on our socket gives it up for this stream, or goes on with it.
            if holder is not None and holder != self._own_daemon:
                whose = f"another daemon's (pid {holder})" if holder else "another daemon's"
                yield self._remark(
                    PROBLEM, stream, "store", f"{directory} is {whose}: choose another, or stop that one"
                )
                return
        if not os.access(directory, os.W_OK | os.X_OK):
            why = "mounted read-only" if os.statvfs(directory).f_flag & os.ST_RDONLY else "another user's"
            yield self._remark(PROBLEM, stream, "store", f"{directory} may not be written to: it is {why}")
            return
        kind = type_of(directory)
        if kind not in IN_MEMORY:
            text = f"{directory} is on {kind}, which is not in memory: batches are as slow as that is. {mount}"
            yield self._remark(NOTE, stream, "store", text)
        # Check 3. One that does not fit takes nothing from the streams after it.
        left = self._rooms.room(stream).bound()[0]
        if stream.buffer_bytes > left:
            text = f"{format_bytes(stream.buffer_bytes)}; {self._rooms.describe(stream)}"
            yield self._remark(PROBLEM, stream, "buffer", text)
        elif stream.buffer_bytes:
            self._rooms.take(stream, stream.buffer_bytes)

    def _ring(self, stream: StreamConfig, look: Look, *, is_too_large: bool) -> Iterator[Remark]:
        """Reckons the ring. A buffer that is known to be too large is not told again."""
        assert look.spec is not None
        spec = spec_of(stream, look.spec)
        slot_bytes = measured_slot_bytes(look.batch_bytes, by_rows=look.by_rows, as_files=stream.store == FILES)
        # What was given in bytes has been taken by now.
        self._rooms.give_back(stream)
        room = self._rooms.room(stream)
        try:
            _, slots, slot_bytes = planned_ring(spec, look.batch_bytes, slot_bytes, room)
        except (BufferTooSmallError, NoSpaceError) as error:
            if not is_too_large:
                yield self._remark(PROBLEM, stream, "buffer", str(error))
            # So many there would be in all that is left.
            slots = min(room.bound()[0], spec.buffer_bytes or room.bound()[0]) // max(1, slot_bytes)
        else:
            self._rooms.take(stream, slots * slot_bytes if stream.store == FILES else ring_bytes(slots, slot_bytes))
            self.ring = Ring(slots, look.batch_bytes)
        for key in ("low_watermark", "high_watermark"):
            mark = getattr(stream, key)
            if mark > slots:
                text = (
                    f"{mark}; allowed: up to {slots}, as there is room for so many batches of "
                    f"{format_bytes(look.batch_bytes)}, the first one's size. Lower it, or raise buffer"
                )
                yield self._remark(PROBLEM, stream, key, text)


class _Rooms:
    """What stores and memory have left, beside what the streams before would take. What a daemon on our socket has for
    its rings now counts as free: it has them for these streams, or gives them up."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._memory_bytes = memory_bytes
        self._taken: dict[str, tuple[int, int]] = {}

    def room(self, stream: StreamConfig) -> Room:
        """Returns the room that the stream's ring may take. The store's directory is there."""
        directory = stream.directory or SHARED_MEMORY
        device = os.stat(directory).st_dev
        own = _own_bytes(stream)
        here = sum(size for where, size in self._taken.values() if where == device)
        everywhere = sum(size for _, size in self._taken.values())
        headroom = cgroup_headroom_bytes()
        return Room(
            max(0, free_bytes(directory) + own - here),
            directory,
            max(0, headroom + own - everywhere) if headroom is not None else None,
            max(0, self._memory_bytes - everywhere) if self._memory_bytes is not None else None,
        )

    def describe(self, stream: StreamConfig) -> str:
        """Says what is left, of what, and who has the rest."""
        found = self.room(stream)
        lefts = [(found.store_bytes, f"{found.store} has")]
        lefts += [(size, "the memory cgroup has") for size in (found.memory_bytes,) if size is not None]
        lefts += [(size, "[daemon] memory has") for size in (found.budget_bytes,) if size is not None]
        left, whose = min(lefts)
        beside = f" beside {', '.join(map(repr, self._taken))}" if self._taken else ""
        return f"allowed: up to {format_bytes(left)}, which {whose} left{beside}"

    def take(self, stream: StreamConfig, size: int) -> None:
        """Counts it as taken from those that come."""
        self._taken[stream.name] = os.stat(stream.directory or SHARED_MEMORY).st_dev, size

    def give_back(self, stream: StreamConfig) -> None:
        """Counts nothing for the stream any more."""
        self._taken.pop(stream.name, None)


def _own_bytes(stream: StreamConfig) -> int:
    """Returns what is the stream's in its store already, or its daemon's."""
    with contextlib.suppress(OSError):
        if stream.store == FILES:
            return file_bytes(stream.directory)
        prefix = runtime_paths().segment_name("ring", "")[1:]
        with os.scandir(stream.directory or SHARED_MEMORY) as entries:
            rings = [each.stat(follow_symlinks=False) for each in entries if each.name.startswith(prefix)]
        return sum(each.st_blocks * 512 for each in rings if each.st_uid == os.geteuid())
    return 0
