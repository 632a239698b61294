"""Manages what a stream owns in the world: its program segment and its ring. Made, shared and given up here."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterator

from prefetchd.daemon.engine.stream.adoption import FoundConsumer, FoundRing
from prefetchd.daemon.segments.planned_ring import epoch_steps, planned_ring
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.ring.batch_files import RESERVE_BYTES, BatchFiles
from prefetchd.ring.capacity import (
    Bounds,
    Room,
    bounds_for,
    check_growth,
    check_step,
    growth_bytes,
)
from prefetchd.ring.file_ring import FileRing, file_bytes
from prefetchd.ring.memory_limits import (
    cgroup_headroom_bytes,
    cgroup_limit_bytes,
    free_bytes,
    mapped_limit_bytes,
    total_bytes,
)
from prefetchd.ring.segment import RingSegment, new_header, unlink
from prefetchd.wire.batch_file import describe_stream
from prefetchd.wire.errors import NoSpaceError, ProtocolError
from prefetchd.wire.file_locks import reopen, try_lock
from prefetchd.wire.os_errors import why
from prefetchd.wire.own_segments import copy_unnamed, give_name, random_token
from prefetchd.wire.runtime_paths import SHARED_MEMORY, RuntimePaths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET, DEPARTED
from prefetchd.wire.stream_spec import UNIDENTIFIED, StreamSpec, decode_spec, encode_spec


class StreamResources:
    """Owns the segments of one stream. `close` leaves nothing behind."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.program_fd = -1
        self.program_name = ""
        self._program_lock = -1
        self.ring: RingSegment | None = None
        self.bounds = Bounds(0, 0)
        """The bounds within which the ring may grow."""

    def take_program(self, name: str, fd: int, paths: RuntimePaths) -> None:
        """Takes over the program segment behind the descriptor `fd`. `name` is the client's for it, or ours to give
        where it has none yet. `fd` is closed whatever happens. Raises ProtocolError when it is not what it says."""
        prefix = paths.segment_name("program", "")
        try:
            if not name.startswith(prefix) or "/" in name[1:]:
                raise ProtocolError(f"a program segment {name!r}; allowed: {prefix}...")
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise ProtocolError(f"the program segment {name!r} belongs to uid {found.st_uid}")
            if not found.st_nlink:
                # The writer's lock is on it until `fd` is closed: nobody takes it for a leftover meanwhile.
                fd = _named(fd, name)
                found = os.fstat(fd)
            named = os.lstat(SHARED_MEMORY + name)
            if (found.st_dev, found.st_ino) != (named.st_dev, named.st_ino):
                raise ProtocolError(f"the descriptor sent is not the program segment {name!r}")
            if not self._own_program(name, fd):
                raise ProtocolError(f"the program segment {name!r} is being reclaimed")
        except OSError as error:
            raise ProtocolError(f"the program segment {name!r} cannot be opened: {why(error)}") from None
        except ValueError as error:
            raise ProtocolError(f"the program segment {name!r} cannot be opened: {error}") from None
        finally:
            os.close(fd)

    def _own_program(self, name: str, fd: int) -> bool:
        """Locks the program through a description of our own: what zygotes get must not keep the lock after us. False
        when another process reclaims it."""
        lock = reopen(fd)
        try:
            locked = try_lock(lock, DAEMON_LOCK_OFFSET, shared=True)
            self.program_fd = reopen(fd) if locked else -1
        except BaseException:
            os.close(lock)
            raise
        if not locked:
            os.close(lock)
            return False
        self.program_name, self._program_lock = name, lock
        if self.ring is not None:
            self.ring.name_program(name)
        return True

    def identify(self, fingerprint: str) -> None:
        """Notes the fingerprint of the stream, which has become known, in its ring as well."""
        self.spec = dataclasses.replace(self.spec, fingerprint=fingerprint)
        if self.ring is not None:
            self.ring.identify(fingerprint, encode_spec(self.spec))

    @classmethod
    def of_dead_daemon(
        cls, name: str, fd: int, generation: int, directory: str = SHARED_MEMORY, memory_bytes: int | None = None
    ) -> StreamResources:
        """Takes over the ring `name` of a dead daemon behind `fd`, which is locked by now, and its program if that is
        still there. All rings may take `memory_bytes`. `fd` is taken over whatever happens. Raises ProtocolError,
        CallerError and OSError."""
        ring = RingSegment.adopt(name, fd, generation, directory)
        try:
            resources = cls(decode_spec(ring.spec))
            resources.bounds = resources._bounds_of_adopted(ring, memory_bytes)
        except BaseException:
            ring.close(unlink_name=False)
            raise
        if resources.spec.fingerprint != ring.header.fingerprint:
            # The daemon died while it wrote one of them.
            resources.spec = dataclasses.replace(resources.spec, fingerprint=UNIDENTIFIED)
        header = ring.header
        resources.ring = ring
        # ValueError: a name with a NUL in it.
        with contextlib.suppress(OSError, ValueError):
            program = os.open(
                f"{SHARED_MEMORY}/{header.program_name.lstrip('/')}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            )
            try:
                resources._own_program(header.program_name, program)
            finally:
                os.close(program)
        kill_point("daemon.adopt.owned")
        return resources

    def _bounds_of_adopted(self, ring: RingSegment, memory_bytes: int | None) -> Bounds:
        """Returns the bounds of an adopted ring: it usually grows no further than the dead daemon wanted; for a single
        batch as far as its segment is long."""
        slots, whole = ring.wanted_slots, self._whole_room(memory_bytes)
        bounds = bounds_for(self.spec, slots, ring.header.slot_bytes, whole, whole)
        return Bounds(slots, min(bounds.most, ring.header.slots), bounds.why)

    def _whole_room(self, memory_bytes: int | None) -> Room:
        """Returns the room that there is in all, whoever has it now."""
        directory = self.spec.directory or SHARED_MEMORY
        return Room(total_bytes(directory), directory, cgroup_limit_bytes(), memory_bytes, mapped_limit_bytes())

    def found(self) -> FoundRing:
        """Returns what the ring tells of the time before this daemon."""
        ring = self.ring
        assert ring is not None
        return FoundRing(
            ring=ring.header.created_ns,
            slots=ring.header.slots,
            wanted_slots=ring.wanted_slots,
            slot_bytes=ring.header.slot_bytes,
            layout=ring.row_layout,
            has_program=self.program_fd >= 0,
            records=tuple(ring.slot_records()),
            offers=ring.offers.words(ring.reserved_slots),
            consumers=tuple(self._found_consumers(ring)),
            bounds=self.bounds,
        )

    @staticmethod
    def _found_consumers(ring: RingSegment) -> Iterator[FoundConsumer]:
        for number in range(ring.header.consumers):
            record, alive = ring.consumer_record(number), ring.has_living_consumer(number)
            marks = ring.marks(number)
            # Marks outlive the record's fields: the next consumer under this number may have yielded nothing.
            if alive or record.yielded or any(marks):
                position = (record.epoch, record.step) if record.yielded else None
                departed = record.cursor == DEPARTED
                yield FoundConsumer(number, record.pid, alive, position, marks, departed)

    def create_ring(
        self,
        name: str,
        batch_bytes: int,
        slot_bytes: int,
        layout: bytes,
        generation: int,
        budget_bytes: int | None,
        files: BatchFiles | None = None,
        memory_bytes: int | None = None,
    ) -> RingSegment:
        """Makes the ring; its batches are `files` if those are given. All rings may take `memory_bytes`, of which
        `budget_bytes` are left. Raises BufferTooSmallError or NoSpaceError."""
        directory = self.spec.directory or SHARED_MEMORY
        try:
            free = free_bytes(directory)
            if files is not None:
                free += file_bytes(directory)
        except OSError as error:
            raise NoSpaceError(f"{directory}: {why(error)}. Is the RAM disk mounted?") from None
        room = Room(free, directory, cgroup_headroom_bytes(), budget_bytes)
        spec, slots, slot_bytes = planned_ring(self.spec, batch_bytes, slot_bytes, room)
        encoded = encode_spec(self.spec)
        bounds = self.bounds = bounds_for(spec, slots, slot_bytes, room, self._whole_room(memory_bytes))
        header = new_header(bounds.most, slot_bytes, spec.fingerprint, generation, encoded, layout, self.program_name)
        if files is None:
            self.ring = RingSegment.create(name, header, encoded, layout, slots, directory)
        else:
            ring = FileRing.create(name, header, encoded, layout, slots)
            ring.files = files
            files.ring = header.created_ns
            self.ring = ring
            bound_bytes = self.spec.buffer_bytes or bounds.usual * slot_bytes + RESERVE_BYTES
            with contextlib.suppress(OSError):  # then it cannot hold batches either, which is told
                files.describe(describe_stream(spec, epoch_steps(spec), bound_bytes, slot_bytes))
        kill_point("daemon.ring.created")
        return self.ring

    def grow_ring(self, slots: int, budget_bytes: int | None) -> None:
        """Lets the ring's reserve_step() go on up to `slots`. Raises NoSpaceError."""
        ring, room = self.ring, self._room_now(budget_bytes)
        assert ring is not None
        check_growth(ring.wanted_bytes, (slots - ring.wanted_slots) * ring.header.slot_bytes, room)
        ring.grow(slots)

    def growth_room(self, budget_bytes: int | None) -> tuple[int, int]:
        """Returns what the store has left, and what the ring may take more."""
        room = self._room_now(budget_bytes)
        return room.store_bytes, growth_bytes(self.ring.wanted_bytes, room) if self.ring is not None else 0

    def _room_now(self, budget_bytes: int | None) -> Room:
        directory = self.spec.directory or SHARED_MEMORY
        return Room(free_bytes(directory), directory, cgroup_headroom_bytes(), budget_bytes)

    def reserve_step(self) -> int:
        """Does the ring's reserve_step(), but not beyond what the memory cgroup has left. Raises NoSpaceError."""
        assert self.ring is not None
        check_step(self.ring.next_step_bytes, cgroup_headroom_bytes())
        return self.ring.reserve_step()

    def close(self) -> None:
        """Unlinks and closes everything; files of batches stay. Idempotent."""
        if self.ring is not None:
            self.ring.close()
            self.ring = None
        kill_point("daemon.drop.ringless")
        if self.program_fd >= 0:
            unlink(self.program_name)
        self._close_program()

    def leave(self) -> None:
        """Closes everything and unlinks nothing: another daemon may adopt it. Idempotent."""
        if self.ring is not None:
            self.ring.close(unlink_name=False)
            self.ring = None
        self._close_program()

    def _close_program(self) -> None:
        if self.program_fd >= 0:
            os.close(self.program_fd)
            os.close(self._program_lock)
            self.program_fd = -1


def _named(fd: int, name: str) -> int:
    """Gives the file its name. Returns its descriptor, or that of a copy in its place where it cannot have one, as it
    comes from another container (decision 0109). Raises OSError."""
    try:
        give_name(fd, name)
    except OSError as error:
        is_another_mount = error.errno == errno.EXDEV and os.fstat(fd).st_dev == os.stat(SHARED_MEMORY).st_dev
        if not is_another_mount:
            raise
        copy = copy_unnamed(fd)
        try:
            # As its writer has locked the other: nobody takes it for a leftover meanwhile.
            try_lock(copy, DAEMON_LOCK_OFFSET, shared=True)
            give_name(copy, name)
        except BaseException:
            os.close(copy)
            raise
        os.close(fd)
        return copy
    return fd


class SegmentNames:
    """Makes names for new rings that nobody can know beforehand."""

    def __init__(self, paths: RuntimePaths) -> None:
        self._paths = paths

    def next_ring(self) -> str:
        return self._paths.segment_name("ring", random_token())
